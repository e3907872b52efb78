"""The training report: one HTML file that needs no network, no server and nothing beside it.

Everything a run brings along (title, tokens, samples, names) is treated as hostile text: the template escapes it,
data for plots travels as JSON inside a data block, and the page's policy allows only the two scripts written here,
by their hash. plotly's own script is inlined once, so a page is about five million characters before its data.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from handgrad.core.errors import FileError
from handgrad.inspect.attention import Packed, pack
from handgrad.inspect.data import Curve, ParameterRow, ReportData
from handgrad.inspect.plots import error_plot, loss_plot, rate_plot
from handgrad.inspect.table import table
from handgrad.inspect.text import number, printable

__all__ = ["Curve", "ParameterRow", "ReportData", "render", "write_report"]

SAMPLE_LIMIT = 20_000


def render(data: ReportData) -> str:
    """The whole page as text, ready for UTF-8.

    Raises ShapeError where the tokens and the attention disagree in length (the text names both numbers) and
    NumericError where an attention row is not a set of weights.

    >>> nothing = Curve([], [])
    >>> page = render(ReportData("demo", {}, nothing, None, {}, None, [], {}, [], [], "", "", []))
    >>> page.startswith("<!DOCTYPE html>"), "no steps yet" in page.lower()
    (True, True)
    """
    packed = pack(data.tokens, data.attention)
    plots = {
        "loss": loss_plot(data.train, data.validation, data.reference_losses),
        "rate": rate_plot(data.learning_rate),
        "error": error_plot(data.error_sizes),
    }
    figures = {name: plot.figure for name, plot in plots.items() if plot.figure is not None}
    plotly, script = _plotly_script(), _template_text("page.js") + _template_text("report.js")
    page: str = (
        _environment()
        .get_template("report.html")
        .render(
            data=data,
            plots=plots,
            packed=packed,
            table=table(data.parameters),
            sample=_sample(data),
            doubt=_doubt(data),
            attention_summary=_attention_summary(packed),
            page_data={"figures": figures, "attention": packed.as_json()},
            css=Markup(_template_text("report.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            hashes=[_hash(plotly), _hash(script)],
        )
    )
    return page


def write_report(data: ReportData, path: Path) -> int:
    """Write the page to `path` and return its size in bytes; an older file there stays whole until the new one is.

    Raises FileError where the folder does not exist or cannot be written, and what `render` raises.

    >>> import tempfile
    >>> nothing = Curve([], [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "report.html"
    ...     size = write_report(ReportData("demo", {}, nothing, None, {}, None, [], {}, [], [], "", "", []), path)
    ...     size == path.stat().st_size
    True
    """
    return write_page(render(data), Path(path))


def write_page(text: str, path: Path) -> int:
    """Write a page whole or not at all and return its size in bytes. Raises FileError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page("page", Path(folder) / "page.html")
    4
    """
    content = text.encode("utf-8")
    if not path.parent.is_dir():
        raise FileError(f"cannot write the report {path}: there is no folder {path.parent}. Create it first.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise FileError(
            f"cannot write the report {path} ({len(content):,} bytes): {error.strerror or error}. "
            "Free some space or choose another place."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
    return len(content)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("handgrad.inspect", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _finalize(value: Any) -> Any:
    """Every text that reaches the page passes here, so that none can hold what UTF-8 or a reader cannot take."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _plotly_script() -> str:
    # not at the top: a command that writes no page should not wait for it; plotly ships no types
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped, unused-ignore]

    return str(get_plotlyjs())


def _template_text(name: str) -> str:
    return files("handgrad.inspect").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _sample(data: ReportData) -> Mapping[str, Any]:
    """The prompt and what the model wrote after it, whether or not the sample repeats the prompt."""
    written = data.sample.removeprefix(data.prompt)
    return {
        "prompt": data.prompt[:SAMPLE_LIMIT],
        "written": written[:SAMPLE_LIMIT],
        "left_out": max(0, len(data.prompt) - SAMPLE_LIMIT) + max(0, len(written) - SAMPLE_LIMIT),
    }


def _doubt(data: ReportData) -> str | None:
    """First and last loss in words, and as the number of equally likely tokens that would leave the same doubt."""
    for name, curve in (("Validation", data.validation), ("Training", data.train)):
        losses = [float(loss) for loss in curve.loss_nats if math.isfinite(loss)] if curve is not None else []
        if len(losses) > 1:
            first, last = losses[0], losses[-1]
            return (
                f"{name} loss went from {number(first)} to {number(last)} nats a token: the doubt of a choice among "
                f"about {_choices(first)} equally likely tokens at first, and among about {_choices(last)} at the end."
            )
    return None


def _choices(loss_nats: float) -> str:
    return number(float(f"{math.exp(min(loss_nats, 700.0)):.2g}"))


def _attention_summary(packed: Packed) -> str:
    if not packed.maps:
        return "No attention map was recorded."
    return (
        f"Heat map of attention weights, {len(packed.tokens)} tokens by {len(packed.tokens)} tokens; "
        "rows are queries, columns are keys. The same weights follow as text for a chosen token."
    )
