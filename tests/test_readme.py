"""README.md tells the truth: its Python runs, its commands exist."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_twenty_lines_run(capsys) -> None:
    torch.manual_seed(0)
    code = next(block for block in python_blocks() if "import handgrad" in block)
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)  # noqa: S102  our own README
    loss, _, without_mlp, after = capsys.readouterr().out.splitlines()
    assert loss.endswith("torch.Size([64, 64])")
    assert float(without_mlp) != float(loss.split()[0])
    assert float(after) < float(loss.split()[0])
    assert float(scope["Delta"].sum(-1).abs().max()) < 1e-6


def test_the_excerpt_of_a_rule_is_the_rule() -> None:
    excerpt = next(block for block in python_blocks() if "rules/linear.py" in block)
    source = (Path(__file__).parents[1] / "src/handgrad/rules/linear.py").read_text(encoding="utf-8")
    said = [line.partition("#")[0].strip() for line in excerpt.splitlines() if line.startswith("    ")]
    assert said[1:] == ['grads.outer("w", saved.a, Delta)', 'grads.total("b", Delta)', "return Delta @ w.mT"]
    assert all(line in source for line in said[1:])


def test_the_commands_and_targets_exist() -> None:
    from typer.main import get_command

    from handgrad.cli.main import app

    commands = set(re.findall(r"^handgrad (\w+) .*(?:--|runs/)", README, re.MULTILINE))
    assert commands
    assert commands <= set(get_command(app).commands)
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)} == set()
