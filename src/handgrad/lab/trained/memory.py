"""Fixed memory fails: recall against the number of facts, for states of fixed size and for memories that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from handgrad.lab.rung import Sizes, width_for
from handgrad.lab.rungs import rung
from handgrad.lab.steps import FAILS, HOLDS, OPEN, Drawing, Finding, Number, Result, Trial
from handgrad.lab.tasks import Recall, longer
from handgrad.lab.trained.training import QUICK, WIDTH, Training, found, line, number, stack_parameters, trials

FIXED, GROWING = ("rnn", "lstm"), ("memory", "transformer")
PAIRS, DISTANCE, MARGIN = (2, 4, 8), 16, 0.1
SECONDS = {"rnn": 12.0, "lstm": 30.0, "memory": 45.0, "transformer": 10.0}  # 800 steps at length 32, fewer where solved


def base(name: str, pairs: int, distance: int = 0) -> Training:
    recurrent = name != "transformer"
    task = Recall(pairs, 16, 16, distance, pause=int(recurrent))
    sizes = Sizes(width=WIDTH, context=task.length, functions=1, hidden=WIDTH)
    seconds = SECONDS[name] * task.length / 32
    fit = replace(QUICK, lr=1e-2) if name == "memory" else QUICK
    return Training(name, task, sizes, fit, seconds, ((f"{2 * pairs} pairs", longer(task, pairs=2 * pairs)),))


def equal(name: str, pairs: int) -> Training:
    """The width at which the stack has the parameters of the Transformer's."""
    one = base(name, pairs)
    sizes = width_for(rung(name), one.sizes, stack_parameters("transformer", one.sizes))
    return replace(one, sizes=sizes, seconds=2 * one.seconds, elsewhere=())


@dataclass(frozen=True)
class Memory:
    name: str = "memory"
    question: str = "Why not an RNN?"
    claim: str = (
        "A state of fixed size is written over: the more facts it must hold, the fewer it can give back. A memory that "
        "grows with the text does not have this trouble, at equal width and at equal numbers of parameters."
    )
    formula: str = rung("memory").formula
    rungs: Sequence[str] = (*FIXED, *GROWING)

    def trials(self) -> Sequence[Trial]:
        most = [one for name in (*FIXED, *GROWING) for one in base(name, PAIRS[1]).seeds()]
        more = [one for pairs in (8, 2) for name in (*FIXED, *GROWING) for one in base(name, pairs).seeds()]
        same = [one for name in FIXED for one in equal(name, PAIRS[1]).seeds()]
        far = [one for name in (*FIXED, *GROWING) for one in base(name, PAIRS[1], DISTANCE).seeds()]
        return [*trials(most), *trials(same), *trials(more), *trials(far)]

    def judge(self, results: Mapping[str, Result]) -> Finding:
        names = (*FIXED, *GROWING)
        at = {
            (name, pairs): number(
                f"accuracy of {rung(name).title}, {pairs} pairs", found(results, base(name, pairs)), "accuracy"
            )
            for name in names
            for pairs in PAIRS
        }
        same = [
            number(f"accuracy of {rung(n).title} at equal parameters", found(results, equal(n, PAIRS[1])), "accuracy")
            for n in FIXED
        ]
        far = [
            number(f"accuracy of {rung(n).title} over {DISTANCE} tokens", found(results, base(n, 4, 16)), "accuracy")
            for n in names
        ]
        numbers = [x for x in (*at.values(), *same, *far) if x is not None]
        drawings = (
            Drawing(
                "Recall against the number of facts",
                "pairs of key and value",
                "accuracy",
                {rung(name).title: line([(pairs, at[name, pairs]) for pairs in PAIRS]) for name in names},
            ),
        )
        said = verdict(at, [x for x in same if x is not None])
        task = base("rnn", PAIRS[1]).task
        assert isinstance(task, Recall)
        notes = (
            f"Chance is {task.chance:.1%}. Who knows the values told and none of their keys gets {task.unbound:.0%} of "
            f"{PAIRS[1]} pairs, by guessing among those not yet asked.",
            f"All are trained for at most {QUICK.steps} steps of {QUICK.batch} sequences.",
            "For the recurrent networks one mark stands between a key that is asked and its answer, because growing "
            "memory looks up with the state from before its input: without the mark it would look before it has read "
            "the key. The Transformer needs no mark. Growing memory learns at a rate of 0.01, the others at 0.003: "
            "what suited each better in a trial of both rates on RNN, LSTM and growing memory.",
            *trained_for_less(results),
        )
        return Finding(*said, numbers, drawings, notes)


def verdict(at: Mapping[tuple[str, int], Number | None], same: Sequence[Number]) -> tuple[str, str]:
    """Holds where the worst growing memory is `MARGIN` above the best fixed one, wherever all are measured."""
    compared = []
    for pairs in PAIRS[1:]:
        fixed, growing = ([at[name, pairs] for name in group] for group in (FIXED, GROWING))
        if all(x is not None for x in (*fixed, *growing)):
            best = max(x.value for x in (*fixed, *(same if pairs == PAIRS[1] else ())))  # type: ignore[union-attr]
            worst = min(growing, key=lambda x: x.value)  # type: ignore[union-attr]
            compared.append((pairs, best, worst.value, worst.label))  # type: ignore[union-attr]
    if not compared:
        return OPEN, "Not all four networks were measured on one number of pairs."
    words = "; ".join(
        f"{pairs} pairs: the best fixed memory recalls {best:.0%}, the worst growing one {worst:.0%}"
        for pairs, best, worst, _ in compared
    )
    return HOLDS if all(worst >= best + MARGIN for _, best, worst, _ in compared) else FAILS, f"{words}."


def trained_for_less(results: Mapping[str, Result]) -> tuple[str, ...]:
    """Of networks that were tried on more pairs than they were trained with."""
    said = []
    for name in (*FIXED, *GROWING):
        tried = [result["elsewhere"] for result in found(results, base(name, PAIRS[1]))]
        values = [one["accuracy"] for elsewhere in tried for one in elsewhere.values() if "accuracy" in one]
        refused = [one for elsewhere in tried for one in elsewhere.values() if "refused" in one]
        if values:
            said.append(f"{rung(name).title} {sum(values) / len(values):.0%}")
        elif refused:
            said.append(f"{rung(name).title} cannot read them, its positions were learned for its own length")
    of = f"Trained with {PAIRS[1]} pairs and asked for {2 * PAIRS[1]}, which are longer sequences: "
    return (of + "; ".join(said) + ".",) if said else ()
