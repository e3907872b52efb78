"""Who may import whom, and what the product never does: differentiate automatically, or run code that came from data.

Each check is a function of source text, so it is tried on planted violations as well as on the package.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "handgrad"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Folder of src/handgrad -> what of handgrad it may import, and which libraries besides the standard one. A folder may
# always import itself. "" is the root: __init__.py and __main__.py.
BELOW_CHECK = ("core", "rules", "layers", "models", "data", "generate", "train", "inspect", "who")
MAY_IMPORT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": ((*BELOW_CHECK, "adapt", "bridge", "check", "cli"), ("torch",)),
    "core": ((), ("torch",)),
    "rules": (("core",), ("torch",)),
    "layers": (("core", "rules"), ("torch",)),
    "receivers": (("core",), ("torch",)),
    # models.load alone names adapt.peft: a MODEL may be an adapter, and is loaded with the model that it belongs to
    "models": (
        ("core", "rules", "layers", "data", "bundled", "receivers", "adapt.peft"),
        ("torch", "numpy", "safetensors", "gguf"),
    ),
    "adapt": (("core", "rules", "layers", "models", "data.files"), ("torch",)),
    "data": (("core.errors",), ("numpy", "torch", "tokenizers", "jinja2")),
    "generate": (("core", "models", "data"), ("torch", "numpy")),
    "train": (
        ("core", "rules", "layers", "models", "data", "generate", "receivers"),
        ("torch", "numpy", "safetensors", "rich", "tomli_w"),
    ),
    "check": (BELOW_CHECK, ("torch", "numpy", "transformers")),  # transformers where it is installed
    "inspect": (("core.errors",), ("numpy", "jinja2", "markupsafe", "plotly")),
    "lab": (
        ("core", "rules", "layers", "models", "data", "train", "generate", "inspect", "plan"),
        ("torch", "numpy", "jinja2", "markupsafe", "latex2mathml"),
    ),
    "bundled": ((), ()),
    "bridge": (("core", "models"), ("torch",)),
    "who": (("core", "rules", "layers", "models", "data"), ("torch",)),
    "plan": (("core", "layers", "models", "train", "generate", "data.files"), ("torch",)),
    "cli": ((*BELOW_CHECK, "adapt", "check", "plan", "lab"), ("torch", "numpy", "typer", "click", "rich")),
}

AUTOGRAD_NAMES = {
    "autograd",
    "requires_grad",
    "requires_grad_",
    "retain_grad",
    "retain_graph",
    "enable_grad",
    "set_grad_enabled",
    "functorch",
}
AUTOGRAD_PATHS = ("torch.func", "torch.nn.Parameter", "torch.nn.parameter", "nn.Parameter")
BRIDGE_USES = {"autograd", "requires_grad", "torch.nn.Parameter", "nn.Parameter"}  # to plug our backward in, no more
CODE_FROM_DATA_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CODE_FROM_DATA_CALLS = ("eval", "exec", "compile", "__import__", "torch.load")
MODULE_BY_NAME_CALLS = ("import_module", "importlib.import_module")  # the root loads lazily, from names written in it


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def imported(source: str, module: str) -> list[tuple[int, str]]:
    """Line and full name of everything that `source` imports; `module` is its own name, for relative imports."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            names += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return names


def wrong_imports(source: str, module: str, known: set[str]) -> list[str]:
    """What `module` (such as `handgrad.rules.gelu`) imports against the table; `known` are the parts of handgrad."""
    parts = module.split(".")
    folder = parts[1] if len(parts) > 2 else ""
    if folder not in MAY_IMPORT:
        return [
            f"{module}: the folder '{folder}' is not in MAY_IMPORT of {Path(__file__).name}; say what it may import"
        ]
    inside, libraries = MAY_IMPORT[folder]
    beside = known - set(MAY_IMPORT)  # files of the root itself: only the root and cli may use them
    allowed = (*inside, folder, *(sorted(beside) if folder in ("", "cli") else ()))
    found = []
    for line, name in imported(source, module):
        top, _, rest = name.partition(".")
        if top != "handgrad":
            if top not in sys.stdlib_module_names and top not in libraries:
                found.append(f"{module}:{line} imports {name}; {folder or 'the root'} may use {', '.join(libraries)}")
        elif rest == "__version__":
            continue
        elif not rest or rest.split(".")[0] not in known:
            found.append(
                f"{module}:{line} imports the package root ({name}), which imports everything; name the module"
            )
        elif not any(rest == prefix or rest.startswith(prefix + ".") for prefix in allowed):
            found.append(f"{module}:{line} imports {name}; {folder} may import {', '.join(allowed) or 'nothing'}")
    return found


def autograd_uses(source: str, module: str) -> list[str]:
    """Names of automatic differentiation in the code of `source`, also as strings for `setattr`; prose may have it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr, *(path for path in AUTOGRAD_PATHS if dotted(node).endswith(path))]
        elif isinstance(node, ast.arg | ast.keyword):
            names = [node.arg or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if "_" in node.value else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for _, name in imported(ast.unparse(node), module):
                names += [*name.split("."), *(path for path in AUTOGRAD_PATHS if name.startswith(path))]
        found += [
            f"{module}:{getattr(node, 'lineno', '?')} uses {name}"
            for name in names
            if name in AUTOGRAD_NAMES or name in AUTOGRAD_PATHS
        ]
    return found


def derived(source: str, module: str) -> list[str]:
    """What `source` takes from torch.autograd besides Function, by which a backward pass of ours is called."""
    return [
        f"{module}:{node.lineno} uses {dotted(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and dotted(node.value).endswith("autograd") and node.attr != "Function"
    ] + [f"{module}:{line} imports {name}" for line, name in imported(source, module) if "autograd" in name]


def code_from_data(source: str, module: str) -> list[str]:
    """Ways in which `source` could run code that came from a file or a string."""
    found = []
    for line, name in imported(source, module):
        if CODE_FROM_DATA_MODULES & set(name.split(".")) or name == "torch.load":
            found.append(f"{module}:{line} imports {name}")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in CODE_FROM_DATA_CALLS or (name in MODULE_BY_NAME_CALLS and module != "handgrad.__init__"):
            found.append(f"{module}:{node.lineno} calls {name}")
        if name in ("np.load", "numpy.load") and not any(
            keyword.arg == "allow_pickle" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            for keyword in node.keywords
        ):
            found.append(f"{module}:{node.lineno} calls {name} without allow_pickle=False")
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def report(problems: list[str]) -> str:
    return "\n" + "\n".join(problems)


KNOWN = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        ("handgrad.core.rule", "import numpy", "imports numpy; core may use torch"),
        ("handgrad.core.rule", "from handgrad.rules import gelu", "core may import core"),
        ("handgrad.rules.gelu", "from handgrad.layers.linear import Linear", "rules may import core, rules"),
        ("handgrad.rules.gelu", "from ..layers import linear", "imports handgrad.layers.linear"),
        ("handgrad.layers.mlp", "from handgrad.check import oracle", "imports handgrad.check.oracle"),
        ("handgrad.data.chars", "from handgrad.core import run", "data may import core.errors, data"),
        ("handgrad.inspect.page", "from handgrad.core.run import Run", "inspect may import core.errors"),
        ("handgrad.train.loop", "from handgrad.cli import main", "imports handgrad.cli.main"),
        ("handgrad.train.loop", "import handgrad", "imports the package root"),
        ("handgrad.models.gpt2", "def f():\n    from handgrad.train import loop", "models.gpt2:2 imports"),
        ("handgrad.models.gpt2", "from handgrad import load", "imports the package root"),
        ("handgrad.nowhere.rnn", "import torch", "'nowhere' is not in MAY_IMPORT"),
        ("handgrad.models.gpt2", "from handgrad.api import load", "imports handgrad.api.load"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str, message: str) -> None:
    (found,) = wrong_imports(source, module, {*MAY_IMPORT, "lab", "api"})
    assert message in found


def test_right_imports_pass() -> None:
    source = "import math\nimport torch.nn.functional\nfrom handgrad.core import errors\nfrom . import x\n"
    assert wrong_imports(source + "from handgrad import __version__", "handgrad.rules.gelu", set(MAY_IMPORT)) == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    problems = wrong_imports(path.read_text(encoding="utf-8"), module_name(path), KNOWN)
    assert not problems, report(problems)


@pytest.mark.parametrize(
    "source",
    [
        "a.requires_grad_()",
        "torch.zeros(2, requires_grad=True)",
        "from torch.autograd import grad",
        "import torch.func",
        "torch.func.vjp(f, a)",
        "setattr(a, 'requires_grad', True)",
        "w = torch.nn.Parameter(a)",
        "from torch.nn import Parameter",
        "Delta.retain_grad()",
    ],
)
def test_a_use_of_autograd_is_seen(source: str) -> None:
    assert autograd_uses(source, "handgrad.rules.gelu")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "from torch import load",
        "eval(text)",
        "exec(text)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "importlib.import_module(name)",
        "import_module(name)",
        "__import__(name)",
        "compile(text, 'name', 'exec')",
    ],
)
def test_code_from_data_is_seen(source: str) -> None:
    assert code_from_data(source, "handgrad.data.files")


def test_the_bridge_takes_no_derivative_from_autograd() -> None:
    assert derived("torch.autograd.grad(y, a)", "handgrad.bridge.a")
    assert derived("from torch.autograd import grad", "handgrad.bridge.a")
    assert derived("class F(torch.autograd.Function): pass", "handgrad.bridge.a") == []


def test_the_product_has_neither_autograd_nor_code_from_data() -> None:
    problems = []
    for path in MODULES:
        folder = path.relative_to(PACKAGE).parts[0]
        source, name = path.read_text(encoding="utf-8"), module_name(path)
        if folder == "check":  # the oracle lives there, and the planted mistakes are our own source compiled again
            continue
        uses = autograd_uses(source, name)
        if folder == "bridge":
            uses = [use for use in uses if use.rpartition(" uses ")[2] not in BRIDGE_USES] + derived(source, name)
        problems += uses + code_from_data(source, name)
    assert not problems, report(problems)
    harmless = '"""Works without autograd."""\nmodel.eval()\nre.compile("a")\nnp.load(path, allow_pickle=False)\n'
    assert autograd_uses(harmless, "handgrad.core.a") == code_from_data(harmless, "handgrad.core.a") == []
