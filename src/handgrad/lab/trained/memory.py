"""Fixed memory fails: recall against the number of facts, for states of fixed size and for memories that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from handgrad.lab.rung import Sizes, width_for
from handgrad.lab.rungs import rung
from handgrad.lab.steps import FAILS, OPEN, Drawing, Finding, Number, Result, Trial, above, worst_of
from handgrad.lab.tasks import Recall, longer
from handgrad.lab.trained.training import QUICK, WIDTH, Training, found, line, number, stack_parameters, trials

FIXED, GROWING = ("rnn", "lstm"), ("memory", "transformer")
ALL = (*FIXED, *GROWING)
PAIRS, DISTANCE, MARGIN, CLOSE = (2, 4, 8), 16, 0.1, 0.03
MAIN = PAIRS[1]
RATES = (3e-3, 1e-2)
HARDER, PATIENT, LONGEST = (
    2,
    3,
    5,
)  # times the steps: for 8 pairs or a distance, and for fixed memories that need longer
SECONDS = {"rnn": 7.0, "lstm": 13.0, "memory": 40.0, "transformer": 8.0}  # 800 steps at length 32, fewer where solved


def base(name: str, pairs: int, distance: int = 0) -> Training:
    recurrent = name != "transformer"
    task = Recall(pairs, 16, 16, distance, pause=int(recurrent))
    sizes = Sizes(width=WIDTH, context=task.length, functions=1, hidden=WIDTH)
    longer_run = HARDER if pairs > MAIN or distance else 1
    fit = replace(QUICK, lr=RATES[name == "memory"], steps=longer_run * QUICK.steps)
    seconds = longer_run * SECONDS[name] * task.length / 32
    return Training(name, task, sizes, fit, seconds, ((f"{2 * pairs} pairs", longer(task, pairs=2 * pairs)),))


def equal(name: str, pairs: int) -> Training:
    """The width at which the stack has the parameters of the Transformer's."""
    one = base(name, pairs)
    sizes = width_for(rung(name), one.sizes, stack_parameters("transformer", one.sizes))
    return replace(one, sizes=sizes, seconds=2 * one.seconds, elsewhere=())


def other_rate(name: str, pairs: int = MAIN) -> Training:
    one = base(name, pairs)
    return replace(one, fit=replace(one.fit, lr=RATES[one.fit.lr == RATES[0]]), elsewhere=())


def patient(name: str) -> Training:
    """For a state of fixed size that may only need more steps."""
    one = base(name, MAIN)
    fit = replace(one.fit, steps=PATIENT * one.fit.steps)
    return replace(one, fit=fit, seconds=PATIENT * one.seconds, elsewhere=())


def longest(pairs: int) -> Training:
    """The LSTM with the most steps, at the rate that suits it then."""
    one = base("lstm", pairs)
    fit = replace(one.fit, lr=RATES[1], steps=LONGEST * QUICK.steps)
    return replace(one, fit=fit, seconds=LONGEST * one.seconds, elsewhere=())


@dataclass(frozen=True)
class Memory:
    name: str = "memory"
    question: str = "Why not an RNN?"
    claim: str = (
        "A state of fixed size is written over: the more facts it must hold, the fewer it gives back. A memory that "
        "grows with the text gives back more, at equal width and at equal numbers of parameters."
    )
    formula: str = rung("memory").formula
    rungs: Sequence[str] = ALL

    def trials(self) -> Sequence[Trial]:
        most = [one for name in ALL for one in base(name, MAIN).seeds()]
        same = [one for name in FIXED for one in equal(name, MAIN).seeds()]
        more = [one for pairs in (8, 2) for name in ALL for one in base(name, pairs).seeds()]
        far = [one for name in ALL for one in base(name, MAIN, DISTANCE).seeds()]
        fair = [one for name in FIXED for kind in (other_rate, patient) for one in kind(name).seeds()]
        fair += [one for name in FIXED for kind in (equal, other_rate) for one in kind(name, PAIRS[2]).seeds()]
        others = [one for name in GROWING for one in other_rate(name).seeds()]
        long = [one for pairs in PAIRS[:2] for one in longest(pairs).seeds()]
        order = (most, same, more, fair, long, far, others)
        return [trial for group in order for trial in trials(group)]

    def judge(self, results: Mapping[str, Result]) -> Finding:
        def recall(one: Training, how: str) -> Number | None:
            return number(f"accuracy of {rung(one.name).title}, {how}", found(results, one), "accuracy")

        at = {(name, pairs): recall(base(name, pairs), f"{pairs} pairs") for name in ALL for pairs in PAIRS}
        again = {
            pairs: [
                *(recall(equal(name, pairs), f"{pairs} pairs, parameters of the Transformer") for name in FIXED),
                *(recall(other_rate(name, pairs), f"{pairs} pairs, rate {RATES[1]:g}") for name in FIXED),
            ]
            for pairs in PAIRS[1:]
        }
        steps = longest(MAIN).fit.steps
        bound = {
            pairs: recall(longest(pairs), f"{pairs} pairs, {steps} steps, rate {RATES[1]:g}") for pairs in PAIRS[:2]
        }
        again[MAIN] += [bound[MAIN]]
        again[MAIN] += [recall(patient(name), f"4 pairs, {patient(name).fit.steps} steps") for name in FIXED]
        besides = [
            *(recall(other_rate(name), f"4 pairs, rate {other_rate(name).fit.lr:g}") for name in GROWING),
            *(recall(base(name, MAIN, DISTANCE), f"4 pairs, over {DISTANCE} tokens") for name in ALL),
        ]
        numbers = [
            x for x in (*at.values(), bound[PAIRS[0]], *again[MAIN], *again[PAIRS[2]], *besides) if x is not None
        ]
        drawings = (
            Drawing(
                "Recall against the number of facts",
                "pairs of key and value",
                "accuracy",
                {rung(name).title: line([(pairs, at[name, pairs]) for pairs in PAIRS]) for name in ALL},
            ),
        )
        compared = sides(at, again)
        first = [
            replace(worst, label=f"worst growing memory, {pairs} pairs", against=f"best fixed memory {best.value:.0%}")
            for pairs, best, worst in reversed(compared)
        ]
        task = base("rnn", MAIN).task
        assert isinstance(task, Recall)
        notes = (
            f"Chance is {task.chance:.1%}. Who knows the values told and none of their keys gets "
            + ", ".join(f"{base('rnn', pairs).task.unbound:.0%} of {pairs} pairs" for pairs in PAIRS)  # type: ignore[attr-defined]
            + ", by guessing among those not yet asked. Only what is above that has tied values to keys.",
            *tied(bound),
            f"All are trained for at most {QUICK.steps} steps of {QUICK.batch} sequences, {HARDER * QUICK.steps} for 8 "
            "pairs and over a distance.",
            "For the recurrent networks one mark stands between a key that is asked and its answer, because growing "
            "memory looks up with the state from before its input: without the mark it would look before it has read "
            f"the key. The Transformer needs no mark. Growing memory learns at a rate of {RATES[1]:g}, the others at "
            f"{RATES[0]:g}; what the other rate gives is measured as well, and so are fixed memories with as many "
            f"parameters as the Transformer and, for {MAIN} pairs, with {PATIENT} times the steps. The verdict "
            "takes the best.",
            "Of 2 pairs there are 122,880 sequences, so that many held-out ones occur in training too; of 4 and 8 "
            "pairs hardly one does. “Over 16 tokens”: so many that mean nothing stand between facts and questions.",
            *trained_for_less(results),
        )
        return Finding(*verdict(compared), [*first, *numbers], drawings, notes)


def sides(
    at: Mapping[tuple[str, int], Number | None], again: Mapping[int, Sequence[Number | None]]
) -> list[tuple[int, Number, Number]]:
    """(pairs, the best fixed memory, the worst growing one) where all four are measured, and the fixed ones with the
    Transformer's parameters too; whatever else was measured of fixed ones takes part."""
    compared = []
    for pairs in PAIRS[1:]:
        fixed, growing = ([x for name in group if (x := at[name, pairs])] for group in (FIXED, GROWING))
        others = [x for x in again[pairs] if x is not None]
        wide = all(again[pairs][: len(FIXED)])
        if len(fixed) == len(FIXED) and len(growing) == len(GROWING) and wide:
            best, worst = max((*fixed, *others), key=mean), min(growing, key=mean)
            compared.append((pairs, best, worst))
    return compared


def blind(pairs: int) -> str:
    return f", a guess that knows no keys {base('rnn', pairs).task.unbound:.0%}"  # type: ignore[attr-defined]


def mean(x: Number) -> float:
    return x.value


def tied(bound: Mapping[int, Number | None]) -> tuple[str, ...]:
    """Whether a fixed memory does better than a blind guess, for so many pairs."""
    said = []
    for pairs, x in bound.items():
        if x is not None:
            guess = base("rnn", pairs).task.unbound  # type: ignore[attr-defined]
            does = "does so" if min(x.each) > guess + CLOSE else "does not"
            said.append(f"with {pairs} pairs it {does} ({x.value:.0%}, a blind guess {guess:.0%})")
    of = f"An LSTM trained for {longest(MAIN).fit.steps} steps ties values to keys where it is above the blind guess: "
    return (of + "; ".join(said) + ".",) if said else ()


def verdict(compared: Sequence[tuple[int, Number, Number]]) -> tuple[str, str]:
    """Holds where the worst growing memory is above the best fixed one, and fixed ones lose as pairs are added."""
    if not compared:
        return (
            OPEN,
            "Not all four networks, and the fixed ones at equal parameters, were measured on one number of pairs.",
        )
    words = "; ".join(
        f"{pairs} pairs: the best fixed memory recalls {best.value:.0%}, the lesser of the two growing ones "
        f"{worst.value:.0%}{blind(pairs)}"
        for pairs, best, worst in compared
    )
    verdicts = [above(worst, best, MARGIN) for _, best, worst in compared]
    verdicts += [FAILS] * (len(compared) > 1 and compared[-1][1].value >= compared[0][1].value)
    return worst_of(verdicts), f"{words}."


def trained_for_less(results: Mapping[str, Result]) -> tuple[str, ...]:
    """Of networks that were tried on more pairs than they were trained with."""
    said = []
    for name in ALL:
        tried = [result["elsewhere"] for result in found(results, base(name, MAIN))]
        values = [one["accuracy"] for elsewhere in tried for one in elsewhere.values() if "accuracy" in one]
        refused = [one for elsewhere in tried for one in elsewhere.values() if "refused" in one]
        if values:
            said.append(f"{rung(name).title} {sum(values) / len(values):.0%}")
        elif refused:
            said.append(f"{rung(name).title} cannot read them, its positions were learned for its own length")
    of = f"Trained with {MAIN} pairs and asked for {2 * MAIN}, which are longer sequences: "
    return (of + "; ".join(said) + ".",) if said else ()
