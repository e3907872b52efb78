"""What must agree in the repository: sizes, the tree in the README, pinned versions, no traces of a machine.

Each check is a function of text, so it is tried on planted violations as well as on the repository.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import handgrad

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "src" / "handgrad").rglob("*.py"))


def tree_differences(readme: str, files: list[str]) -> list[str]:
    """How the folder tree in `readme` differs from `files` (names of .py files, once for each file)."""
    block = re.search(r"^```[^\n]*\n\s*src/handgrad/.*?^```", readme, flags=re.DOTALL | re.MULTILINE)
    if block is None:
        return ["README.md has no code block that begins with a line 'src/handgrad/': the folder tree is missing"]
    shown = Counter(re.findall(r"\b\w+\.py\b", block.group()))
    real = Counter(files)
    shown.pop("__init__.py", None)
    real.pop("__init__.py", None)
    missing = [f"{name} (on disk {real[name]} times, in the tree {shown[name]})" for name in sorted(real - shown)]
    stale = [f"{name} (in the tree {shown[name]} times, on disk {real[name]})" for name in sorted(shown - real)]
    return [f"not in README.md's tree: {text}" for text in missing] + [f"not on disk: {text}" for text in stale]


def unpinned(requirements: list[str], constraints: str) -> list[str]:
    """Requirements that `constraints` does not pin, or pins outside their range, and lines that are no exact pins."""
    found: list[str] = []
    pins: dict[str, str] = {}
    for line in filter(None, (line.split("#")[0].strip() for line in constraints.splitlines())):
        name, equals, version = line.partition("==")
        if not equals or "*" in version:
            found.append(f"constraints.txt: '{line}' is not of the form name==version")
        pins[canonicalize_name(name)] = version
    for requirement in map(Requirement, requirements):
        version = pins.get(canonicalize_name(requirement.name), "")
        if not version:
            found.append(f"constraints.txt does not pin {requirement.name}")
        elif not requirement.specifier.contains(version, prereleases=True):
            found.append(f"constraints.txt pins {requirement.name}=={version}, pyproject.toml asks for {requirement}")
    return found


# Written in pieces, so that this file does not accuse itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.~-])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "tm" + "p"]) + r")(?=/|\b)"
)
REGISTRIES = re.compile(
    "|".join(["py" + r"pi\.", "pythonho" + "sted", r"download\.pyto" + "rch", "npm" + r"js\.", r"\bdebi" + r"an\.org"])
)


def machine_traces(text: str, path: str) -> list[str]:
    """Lines of `text` that name a folder of somebody's machine or the host of a package registry."""
    return [
        f"{path}:{number} names {match.group()!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for match in (MACHINE_PATH.search(line), REGISTRIES.search(line))
        if match
    ]


def report(problems: list[str]) -> str:
    return "\n" + "\n".join(problems)


def project_files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of the project's files")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_python_files_are_short() -> None:
    script = [sys.executable, str(ROOT / "tools" / "check_sizes.py")]
    verdict = subprocess.run(script, capture_output=True, text=True, check=False)
    assert verdict.returncode == 0, verdict.stderr


def test_a_tree_that_differs_is_seen() -> None:
    readme = "# a\n```\nsrc/handgrad/\n  core/  run.py gone.py\n```\nlater.py\n"
    assert tree_differences(readme, ["run.py", "run.py", "later.py", "__init__.py"]) == [
        "not in README.md's tree: later.py (on disk 1 times, in the tree 0)",
        "not in README.md's tree: run.py (on disk 2 times, in the tree 1)",
        "not on disk: gone.py (in the tree 1 times, on disk 0)",
    ]


def test_the_readme_tree_names_every_file() -> None:
    problems = tree_differences((ROOT / "README.md").read_text(encoding="utf-8"), [path.name for path in MODULES])
    assert not problems, report(problems)


def test_every_dependency_is_pinned() -> None:
    assert unpinned(["tomli-w>=1.0", "rich>=13", "gone"], "tomli_w==1.2.0\nrich==12.0\nnumpy>=1\n") == [
        "constraints.txt: 'numpy>=1' is not of the form name==version",
        "constraints.txt pins rich==12.0, pyproject.toml asks for rich>=13",
        "constraints.txt does not pin gone",
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
    assert len(wanted) > 10
    problems = unpinned(wanted, (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert not problems, report(problems)


def test_no_file_names_a_machine_or_a_registry() -> None:
    planted = ["cd /wo" + "rk/main", "open('/tm" + "p/x')", "~x:/ro" + "ot", "https://py" + "pi.org/simple"]
    assert [len(machine_traces(line, "a")) for line in planted] == [1, 1, 1, 1]
    assert machine_traces("tokens/work and ../work ./home docs/work/a", "a") == []
    problems = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        problems += machine_traces(text, path.relative_to(ROOT).as_posix())
    assert not problems, report(problems)


def test_every_test_file_can_fail() -> None:
    empty = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        asserts = any(isinstance(node, ast.Assert) for node in nodes)
        raises = any(isinstance(node, ast.Attribute) and node.attr == "raises" for node in nodes)
        if not asserts and not raises:
            empty.append(f"{path.name} has neither an assert nor a pytest.raises: it cannot fail")
    assert not empty, report(empty)


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, flags=re.MULTILINE), "CITATION.cff"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}]" in changelog, f"CHANGELOG.md has no section for {version}"
    assert handgrad.__version__ == version


def test_every_public_name_can_be_had() -> None:
    missing = []
    for name in handgrad.__all__:
        try:
            getattr(handgrad, name)
        except (AttributeError, ImportError) as error:
            missing.append(f"handgrad.{name}: {error}")
    assert not missing, report(missing)
    assert 0 < len(handgrad.__all__) <= 30


def test_the_licence_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.splitlines()) == 202
