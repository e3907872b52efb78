"""The scripts that CI relies on are seen to fail on what they have to refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def a_run(folder: Path, losses: list[float], checkpoint: bytes) -> Path:
    rows = [{"step": step, "loss_nats": loss} for step, loss in enumerate(losses, start=1)]
    folder.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.joinpath("checkpoints").mkdir()
    folder.joinpath("checkpoints", "last.safetensors").write_bytes(checkpoint)
    return folder


def test_a_complete_run_passes(tmp_path: Path) -> None:
    verdict = script("check_run.py", a_run(tmp_path, [3.0, 2.5, 2.0], b"weights"), "--steps", "3")
    assert (verdict.returncode, verdict.stderr) == (0, "")
    assert verdict.stdout.endswith("3 steps with finite losses, and a checkpoint\n")


@pytest.mark.parametrize(
    ("losses", "checkpoint", "message"),
    [
        ([3.0, 2.5], b"weights", "has losses for the steps [1, 2]; 3 steps were asked for"),
        ([3.0, float("nan"), 2.0], b"weights", "has losses that are not finite: {2: nan}"),
        ([3.0, 2.5, 2.0], b"", "holds no file with content"),
    ],
)
def test_an_incomplete_run_is_refused(tmp_path: Path, losses: list[float], checkpoint: bytes, message: str) -> None:
    verdict = script("check_run.py", a_run(tmp_path, losses, checkpoint), "--steps", "3")
    assert verdict.returncode == 1
    assert message in verdict.stderr


def test_a_run_that_left_nothing_is_refused(tmp_path: Path) -> None:
    verdict = script("check_run.py", tmp_path, "--steps", "3")
    assert verdict.returncode == 1
    assert "metrics.jsonl is missing" in verdict.stderr
    assert "holds no file with content" in verdict.stderr


def test_a_page_that_loads_from_elsewhere_is_refused(tmp_path: Path) -> None:
    assert "no page below" in script("check_site.py", tmp_path).stderr
    page = tmp_path / "index.html"
    page.write_text('<a href="https://example.org">a link is fine</a><script src="a.js"></script>')
    assert script("check_site.py", tmp_path).returncode == 0
    page.write_text('<link rel="stylesheet" href="//example.org/a.css">')
    verdict = script("check_site.py", tmp_path)
    assert verdict.returncode == 1
    assert "index.html: loads //example.org/a.css" in verdict.stderr


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.html").write_text('<a id="line-7"></a><a href="../index.html">up</a>')
    page = tmp_path / "index.html"
    page.write_text('<a href="code/a.html#line-7">7</a><a href="#">top</a><a href="mailto:a@b">b</a>')
    assert script("check_site.py", tmp_path).returncode == 0
    page.write_text('<a href="code/a.html#line-8">8</a><a href="b.html">b</a><a href="#x">x</a>')
    verdict = script("check_site.py", tmp_path)
    assert verdict.returncode == 1
    for link in ("code/a.html#line-8", "b.html", "#x"):
        assert f"index.html: the link {link} leads nowhere" in verdict.stderr


@pytest.mark.parametrize("mark", ['--8<-- "a.py"', '--8 < --"a.py"'])
def test_code_that_was_not_included_is_refused(tmp_path: Path, mark: str) -> None:
    page = tmp_path / "rules" / "a.html"
    page.parent.mkdir()
    page.write_text("<pre><span>def</span> <span>forward</span>(a)</pre>")
    assert script("check_site.py", tmp_path).returncode == 0
    page.write_text("<pre>no code</pre>")
    verdict = script("check_site.py", tmp_path)
    assert verdict.returncode == 1
    assert verdict.stderr == "rules/a.html: a page of the rules that shows no `def forward`\n"
    page.write_text(f"<pre>def forward {mark.replace('<', '&lt;')}</pre>")
    verdict = script("check_site.py", tmp_path)
    assert verdict.returncode == 1
    assert "stands where code should have been included" in verdict.stderr


def test_python_files_over_the_limit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "long.py").write_text("a = 1\n" * 401)
    verdict = script("check_sizes.py", tmp_path)
    assert verdict.returncode == 1
    assert "src/long.py: 401 lines, the limit is 400" in verdict.stderr
    (tmp_path / "src" / "long.py").write_text("a = 1\n" * 400)
    assert script("check_sizes.py", tmp_path).returncode == 0


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")
def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    finder = ["sh", str(TOOLS / "find_python.sh"), str(old)]
    refused = subprocess.run(finder, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"needs Python 3.11 or newer with its venv module; found none under these names: {old}" in refused.stderr
    found = subprocess.run([*finder, sys.executable], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)
