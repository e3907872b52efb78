"""Run the notebooks of examples/ from top to bottom, each in one namespace, and write into them what their cells say.

`python tools/notebook.py` writes; `--check` runs the cells and writes nothing. A cell says what it prints, and what its
last expression, as a table where it has one. Nothing but Python is needed for it; Jupyter shows the result.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook with its outputs; what a cell raises is raised."""
    space: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"], cell["outputs"] = count, outputs("".join(cell["source"]), space, count)
    return notebook


def outputs(source: str, space: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, f"cell {count}", "exec"), space)  # noqa: S102
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), space)  # noqa: S307
    found: list[dict[str, Any]] = []
    if said.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": str(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found


def main(asked: list[str]) -> int:
    for path in sorted(FOLDER.glob("*.ipynb")):
        done = run(json.loads(path.read_text(encoding="utf-8")))
        if "--check" not in asked:
            path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in done['cells'])} cells run")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
