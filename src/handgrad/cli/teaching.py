"""What `handgrad who` does once its options are known."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from handgrad.cli.options import problems
from handgrad.cli.output import Output
from handgrad.cli.verifying import tokens_of
from handgrad.cli.waiting import waiting
from handgrad.cli.writing import WORDLESS
from handgrad.core.errors import ConfigError, HandgradError, ShapeError
from handgrad.data.checks import check_choice
from handgrad.models.load import load
from handgrad.models.model import Model
from handgrad.who import block, ranked
from handgrad.who.words import as_text

MOST_TOKENS = 1024  # of a text; the factors of one weight are kept for each


@dataclass(frozen=True)
class Request:
    """The options of one `handgrad who`. Raises ConfigError at once for what cannot be, all of it together."""

    text: str
    weight: str | None = None
    head: int | None = None
    split: str | None = None
    top: int = 10
    position: int | None = None
    loss_at: int | None = None
    unknown: str = "abort"

    def __post_init__(self) -> None:
        wrong = []
        if (self.weight is None) == (self.split is None):
            wrong.append("give --weight NAME or --split BLOCK, one of the two; handgrad explain MODEL lists all names")
        if self.head is not None and self.weight is None:
            wrong.append("--head needs the --weight that it is a part of (--split shows all heads)")
        if self.top < 1:
            wrong.append(f"--top is {self.top}, and must be at least 1")
        for flag, at in (("--position", self.position), ("--loss-at", self.loss_at)):
            if at is not None and at < 0:
                wrong.append(f"{flag} is {at}, and must be at least 0, the first token")
        if not self.text:
            wrong.append("--text is empty; give some text")
        try:
            check_choice(self.unknown)
        except HandgradError as error:
            wrong.append(f"--unknown: {error}")
        if wrong:
            raise ConfigError(problems(wrong))


def show(request: Request, name: str, output: Output) -> None:
    """Ask the model of that name and say what was found. Raises HandgradError."""
    with waiting(f"loading {name}", output.live):
        model = load(name)
    if model.tokenizer is None:
        raise ConfigError(f"{WORDLESS}. In Python, handgrad.who(model, ids, NAME) takes ids as they are")
    tokens, _ = tokens_of(model, request.text, output, request.unknown, MOST_TOKENS)
    if request.position is not None and request.position >= tokens.shape[1]:
        raise ShapeError(f"--position is {request.position}, and the text has positions 0 to {tokens.shape[1] - 1}")
    tell = show_split if request.weight is None else show_weight
    tell(model, tokens, counted(tokens, request.loss_at), request, output)


def counted(tokens: Tensor, at: int | None) -> Tensor | None:
    """Whose surprise the loss counts ~ (B, T): everybody's, or what is predicted at one position."""
    if at is None:
        return None
    if at > tokens.shape[1] - 2:
        raise ShapeError(f"--loss-at is {at}, and the text is predicted at positions 0 to {tokens.shape[1] - 2}")
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    valid[:, at] = True
    return valid


def show_weight(model: Model, tokens: Tensor, valid: Tensor | None, request: Request, output: Output) -> None:
    assert request.weight is not None, "checked when the options were"
    found = ranked.who(model, tokens, request.weight, request.head, valid=valid)
    which = (request.top, request.position)
    terms = found.top(*which)
    for term in terms:
        output.record(asdict(term))
    output.text(as_text(found.table(*which)))
    output.text("\n" + "\n".join(found.words(*which)))
    output.record(
        {
            "weight": found.name,
            "head": found.head,
            "loss_nats": found.loss,
            "gradient_norm": float(found.gradient.norm()),
            "terms": found.n_terms,
            "share": sum(term.share for term in terms),
            "tokens": tokens[0].tolist(),
        }
    )


def show_split(model: Model, tokens: Tensor, valid: Tensor | None, request: Request, output: Output) -> None:
    assert request.split is not None, "checked when the options were"
    found, at = block.split_block(model, tokens, request.split, valid), request.position
    for name, part in found.parts.items():
        norm = float(found.at(part, at).norm())
        output.record({"part": name, "share": found.share(part, at), "norm": norm})
    output.text(as_text(found.table(at)))
    if found.heads:
        output.text("\n" + as_text(found.head_table(at)))
    output.text(f"\n{found.sentence(at)}\n{block.SIGN}")
    norm = float(found.at(found.whole, at).norm())
    last = {"split": found.name, "position": at, "norm": norm, "off": found.off}
    output.record(last | {"tokens": tokens[0].tolist()})
