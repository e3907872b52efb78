"""How much is in my pocket? The text's own example, for states of fixed size and for memories that grow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Finding, Number, above
from handgrad.lab.tasks import Batch, Pocket
from handgrad.lab.trained.labelled import MARGIN, Found, Labelled, bars, counts, percent, shown, sure
from handgrad.lab.trained.memory import FIXED, GROWING
from handgrad.lab.trained.training import QUICK, WIDTH, Training


@dataclass(frozen=True)
class PausedPocket(Pocket):
    """A mark between the thing that is asked and the amount; what follows the mark is scored, as in `Recall`'s `pause`.

    >>> task = PausedPocket(2, 1, 1, 8)
    >>> ids, targets = task.draw(1, torch.Generator().manual_seed(1))
    >>> task.text(ids[0])
    'have 6 dollars today have 1 coins rain now 2 dollars red many coins many 1 many dollars many 2'
    >>> [(task.words[i], task.words[t]) for i, t in zip(ids[0], targets[0]) if t >= 0]
    [('many', '1'), ('many', '2')]
    """

    name = "pocket with a pause"

    @property
    def length(self) -> int:
        return super().length + self.things

    def draw(self, n: int, g: torch.Generator) -> Batch:
        ids, targets = super().draw(n, g)
        told, asked = ids.tensor_split([super().length - 3 * self.things], 1)
        questions = asked.unflatten(1, (self.things, 3))
        paused = torch.cat((questions[..., :2], questions[..., :1], questions[..., 2:]), -1).flatten(1)
        ids, answers = torch.cat((told, paused), 1), targets[targets >= 0].view(n, self.things)
        targets = torch.full_like(ids, -1)
        targets[:, told.shape[1] + 2 :: 4] = answers
        return ids, targets


POCKET = PausedPocket(things=3, updates=2, chatter=1, amounts=16)
FIT = replace(QUICK, steps=600)
SECONDS = {"transformer": 7.0, "lstm": 10.0, "rnn": 4.0, "memory": 35.0}


def training(name: str) -> Training:
    sizes = Sizes(width=WIDTH, context=POCKET.length, functions=1, hidden=WIDTH)
    fit = replace(FIT, lr=1e-2) if name == "memory" else FIT
    return Training(name, POCKET, sizes, fit, SECONDS[name])


def judged(of: Found) -> Finding:
    n = {name: sure(f"accuracy: {rung(name).title}", of[name]) for name in (*FIXED, *GROWING)}
    best = max((n[name] for name in FIXED), key=lambda x: x.value)
    worst = min((n[name] for name in GROWING), key=lambda x: x.value)
    because = (
        f"Amounts of {POCKET.things} things, {POCKET.updates} of them told anew: "
        + ", ".join(f"{rung(name).title} {percent(x)}" for name, x in n.items())
        + f" of the answers, in at most {FIT.steps} steps."
    )
    titled = {rung(name).title: rows for name, rows in of.items()}
    numbers = [
        replace(worst, against=f"best fixed memory {percent(best)}"),
        *n.values(),
        *shown(titled, "loss: {}", "loss_nats", "nats"),
        *counts(titled),
        *(Number(f"bytes kept at the end: {title}", rows[0]["state_bytes"], "bytes") for title, rows in titled.items()),
    ]
    example = POCKET.text(POCKET.draw(1, torch.Generator().manual_seed(0))[0][0])
    notes = (
        f"One sequence: “{example}”. Right is the amount told last; chance is {POCKET.chance:.1%}.",
        f"Two layers of width {WIDTH}. Growing memory learns at a rate of 0.01, the others at 0.003, as in the step on "
        "recall; for its sake a mark stands between what is asked and the answer, for all four.",
    )
    return Finding(above(worst, best, MARGIN), because, numbers, (bars("Amounts right", titled),), notes)


AMOUNTS = Labelled(
    "pocket",
    "How much is in my pocket?",
    "Asked for an amount told some time ago, and perhaps corrected since, a state of fixed size answers less often "
    "than a memory that grows with the text.",
    rung("memory").formula,
    tuple((name, training(name)) for name in SECONDS),
    (*FIXED, *GROWING),
    judged,
)
