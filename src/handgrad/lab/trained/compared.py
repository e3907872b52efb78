"""Steps that compare some rungs on one task: the newer one is said to recall more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import OPEN, Drawing, Finding, Number, Result, Trial, above
from handgrad.lab.tasks import Recall
from handgrad.lab.trained.training import QUICK, WIDTH, Training, found, number, stack_parameters, trials

MARGIN = 0.05


@dataclass(frozen=True)
class Compared:
    """`more` are said to recall more than `less`, by at least MARGIN in accuracy; both are (rung, seconds).

    task, sizes     the same for all of them
    besides         measured and shown, without a part in the verdict
    """

    name: str
    question: str
    claim: str
    formula: str
    task: Recall
    sizes: Sizes
    less: tuple[tuple[str, float], ...]
    more: tuple[tuple[str, float], ...]
    besides: tuple[tuple[str, float], ...] = ()

    @property
    def rungs(self) -> Sequence[str]:
        return [name for name, _ in (*self.besides, *self.less, *self.more)]

    def training(self, name: str) -> Training:
        seconds = dict((*self.less, *self.more, *self.besides))[name]
        return Training(name, self.task, replace(self.sizes, context=self.task.length), QUICK, seconds)

    def trials(self) -> Sequence[Trial]:
        order = [name for name, _ in (*self.less, *self.more, *self.besides)]
        return trials([one for name in order for one in self.training(name).seeds()])

    def judge(self, results: Mapping[str, Result]) -> Finding:
        n = {name: self.accuracy(name, results) for name in self.rungs}
        less, more = ([n[name] for name, _ in group] for group in (self.less, self.more))
        if any(x is None for x in (*less, *more)):
            return Finding(OPEN, f"Not measured: {', '.join(name for name in self.rungs if n[name] is None)}.")
        best = max((x for x in less if x is not None), key=lambda x: x.value)
        worst = min((x for x in more if x is not None), key=lambda x: x.value)
        others = "; ".join(said(x) for x in less if x is not None)
        because = f"{said(worst)} against {others}, on {self.task.pairs} pairs in at most {QUICK.steps} steps."
        measured = {name: x for name, x in n.items() if x is not None}
        bars = {
            "accuracy": {
                "x": [rung(name).title for name in measured],
                "y": [x.value for x in measured.values()],
                "low": [x.value if x.low is None else x.low for x in measured.values()],
                "high": [x.value if x.high is None else x.high for x in measured.values()],
            }
        }
        counts = [Number(f"parameters of {rung(x).title}", stack_parameters(x, self.sizes)) for x in measured]
        steps = [number(f"steps of {rung(x).title}", found(results, self.training(x)), "steps") for x in measured]
        many = "one function or head" if self.sizes.functions == 1 else f"{self.sizes.functions} functions or heads"
        notes = (
            f"Two layers of width {self.sizes.width} with {many}. Chance is {self.task.chance:.1%}; guessing among the "
            f"values told and not yet asked gives {self.task.unbound:.0%}.",
        )
        verdict = above(worst, best, MARGIN)
        first = replace(worst, against=f"{best.label} {best.value:.0%}")
        numbers = [first, *measured.values(), *counts, *(x for x in steps if x is not None)]
        return Finding(verdict, because, numbers, (Drawing("Recall", "rung", "accuracy", bars, "bars"),), notes)

    def accuracy(self, name: str, results: Mapping[str, Result]) -> Number | None:
        return number(f"accuracy of {rung(name).title}", found(results, self.training(name)), "accuracy")


def said(x: Number) -> str:
    return f"{x.label} {x.value:.0%}" + ("" if x.low is None else f" ({x.low:.0%} to {x.high:.0%})")


FOUR = Recall(4, 16, 16)
ONE = Sizes(width=WIDTH, context=16, functions=1, hidden=32)
TWO = replace(ONE, functions=2, spread=0.5)

PRODUCT = Compared(
    "product",
    "Why a product?",
    "tanh of a sum interacts weakly: a product of both tokens lets units want different things of one input, so with "
    "as many parameters, and all under the same softmax, it recalls more than tanh does, and more than scores without "
    "interaction.",
    r"v_{\alpha\beta} = (x_\alpha W_q)(x_\beta W_k)^\top",
    FOUR,
    TWO,
    less=(("tanh_softmax", 15.0), ("source_softmax", 5.0)),
    more=(("softmax", 2.0),),
    besides=(("tanh", 14.0), ("no_interaction", 4.0), ("dot", 2.0), ("low_rank", 4.0)),
)

WINDOW = Compared(
    "window",
    "What is the price, and can it be had for less?",
    "Reading near tokens only costs less than reading all pairs, and loses what stands too far away to be recalled.",
    rung("window").formula,
    FOUR,
    replace(ONE, window=4),
    less=(("window", 10.0),),
    more=(("transformer", 4.0),),
    besides=(("block_sparse", 10.0),),
)
