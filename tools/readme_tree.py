"""Writes the folder tree of README.md from the first line of each module's docstring, so that the two cannot differ.

python tools/readme_tree.py          writes it
python tools/readme_tree.py --check  exits with 1 if README.md is not up to date
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "handgrad"
BLOCK = re.compile(r"```\nsrc/handgrad/\n.*?```", re.DOTALL)
WIDTH = 120
FOLDERS = {
    "core": "the abstraction; imports torch only",
    "rules": "the mathematics: one equation a file, forward beside backward",
    "layers": "thin: names and shapes of parameters, and which rule",
    "receivers": "who may receive a gradient's factors, besides a sum",
    "models": "a configuration becomes a tree of layers; loading and storing",
    "adapt": "low-rank updates beside a frozen model, and their files",
    "data": "text to tokens to windows",
    "train": "loop, optimiser, schedule, checkpoints",
    "generate": "KV cache, sampling, writing on",
    "check": "the proof: oracle, laws, cases, planted mistakes",
    "cases": "one table of cases over every rule and layer",
    "mistakes": "planted mistakes, by area",
    "bundled": "models that come along: checkpoint folders, and their recipes",
    "bridge": "a layer or model as a torch.nn.Module; the one folder that names torch.autograd",
    "inspect": "the report page; knows names and arrays, not layers",
    "cli": "one command a file",
}


def first_line(path: Path) -> str:
    doc = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return doc.rstrip(".")


def lines() -> list[str]:
    out = ["src/handgrad/"]
    names = sorted(p for p in PACKAGE.glob("*.py") if p.name != "__init__.py")
    out += [row(2, path.name, first_line(path)) for path in names]
    known = [name for name in FOLDERS if (PACKAGE / name).is_dir()]
    known += sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name not in FOLDERS and p.name[0] not in "._")
    for name in known:
        out += folder(PACKAGE / name, 2)
    return out


def folder(at: Path, indent: int) -> list[str]:
    about = FOLDERS.get(at.name) or (first_line(at / "__init__.py") if (at / "__init__.py").exists() else "")
    out = [row(indent, f"{at.name}/", about)]
    out += [row(indent + 2, p.name, first_line(p)) for p in sorted(at.glob("*.py")) if p.name != "__init__.py"]
    for inner in sorted(p for p in at.iterdir() if p.is_dir() and any(p.glob("*.py"))):
        out += folder(inner, indent + 2)
    return out


def row(indent: int, name: str, about: str) -> str:
    text = f"{' ' * indent}{name:<{24 - indent}} {about}".rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 2].rsplit(" ", 1)[0] + " …"


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    block = "```\n" + "\n".join(lines()) + "\n```"
    if not BLOCK.search(text):
        print("README.md has no code block that begins with src/handgrad/")
        return 1
    new = BLOCK.sub(lambda _: block, text)
    if new == text:
        return 0
    if "--check" in sys.argv:
        print("the folder tree of README.md is out of date; run: python tools/readme_tree.py")
        return 1
    readme.write_text(new, encoding="utf-8")
    print("README.md: folder tree written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
