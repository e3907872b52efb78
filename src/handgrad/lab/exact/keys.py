"""The MLP of a trained model as a key-value memory: what makes a key fire, and what its value promotes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handgrad.core.params import generator_of
from handgrad.core.signals import leaf
from handgrad.data.sources import embedded_text
from handgrad.lab.exact.common import Exact, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.models.load import load
from handgrad.models.model import Model, watch

MODEL, WINDOWS, LENGTH, TOP, PERMUTATIONS, SHOWN, BEFORE = "docs-1m", 96, 128, 10, 200, 4, 24


@dataclass(frozen=True)
class Fired:
    """One layer. keys ~ (m, TOP): places (in all windows, flat) where each key fires most; promoted ~ (m,): tokens."""

    keys: Tensor
    promoted: Tensor
    tops: Tensor  # (m, 3)  tokens that the value raises most


def texts(model: Model) -> Tensor:
    """Windows of the validation part, which the bundled model was not trained on: ids ~ (WINDOWS, LENGTH + 1)."""
    text = embedded_text()
    ids = torch.tensor(model.tokenizer.encode(text[len(text) * 9 // 10 :]), dtype=torch.int64)
    starts = torch.linspace(0, len(ids) - LENGTH - 1, WINDOWS).long()
    return ids[starts[:, None] + torch.arange(LENGTH + 1)]


def fired(model: Model, ids: Tensor) -> list[Fired]:
    """For every layer: where its keys fire most, and what its values raise in the logits."""
    with watch(model, "blocks.*.mlp.activation") as signals:
        model(ids[:, :-1])
    found = []
    for path in sorted((p for p in signals if leaf(p) == "activation"), key=lambda p: int(p.split(".")[1])):
        m = signals[path].flatten(0, 1)
        logits = raised(model, model.params[path.replace("activation", "down.w")])
        found.append(Fired(m.topk(TOP, 0).indices.mT, logits.argmax(-1), logits.topk(3).indices))
    return found


def raised(model: Model, values: Tensor) -> Tensor:
    """What a step along each value does to the logits, up to a scale: through the last norm's centring and gain."""
    rows = (values - values.mean(-1, keepdim=True)) * model.params["norm.gamma"]
    return rows @ model.w_head.mT


def agreement(promoted: Tensor, following: Tensor) -> float:
    """Share of a key's top contexts that go on with the token its value promotes; following ~ (m, TOP)."""
    return float((promoted[:, None] == following).double().mean())


def chance(promoted: Tensor, following: Tensor, seed: int = 0) -> list[float]:
    """The same with values dealt out to keys at random: what frequent tokens alone would give."""
    g = generator_of(seed, "permutations")
    return [agreement(promoted[torch.randperm(len(promoted), generator=g)], following) for _ in range(PERMUTATIONS)]


def work(say: Say) -> Result:
    model = load(MODEL)
    say(f"{MODEL} reads {WINDOWS} windows", 0.1)
    return measured(model, texts(model))


def measured(model: Model, ids: Tensor) -> Result:
    following, layers = ids[:, 1:].flatten(), []
    for i, one in enumerate(fired(model, ids)):
        goes_on = following[one.keys]
        layers.append(
            {
                "agreement": agreement(one.promoted, goes_on),
                "chance": chance(one.promoted, goes_on, i),
                "different": len(one.promoted.unique()),
                "shown": shown(model, ids, one, goes_on),
            }
        )
    return {"layers": layers, "keys": len(one.promoted), "tokens": ids[:, 1:].numel()}


def shown(model: Model, ids: Tensor, one: Fired, goes_on: Tensor) -> list[dict[str, Any]]:
    """The keys that agree most, and as many drawn at random: contexts, what followed, what the value promotes."""
    best = (one.promoted[:, None] == goes_on).sum(-1).topk(SHOWN).indices.tolist()
    drawn = torch.randperm(len(one.promoted), generator=generator_of(0, "shown"))[:SHOWN].tolist()
    found = []
    for key in (*best, *drawn):
        contexts = []
        for place in one.keys[key, :3].tolist():
            row, t = divmod(place, ids.shape[1] - 1)
            contexts.append(model.tokenizer.decode(ids[row, max(0, t - BEFORE + 1) : t + 1].tolist()))
        tops = [model.tokenizer.decode([token]) for token in one.tops[key].tolist()]
        share = float((one.promoted[key] == goes_on[key]).double().mean())
        found.append({"key": key, "contexts": contexts, "promotes": tops, "agreement": share, "chosen": key in best})
    return found


def judged(found: Result) -> Finding:
    layers = found["layers"]
    rates = [one["agreement"] for one in layers]
    expected = [sum(one["chance"]) / len(one["chance"]) for one in layers]
    whole, by_chance = sum(rates) / len(rates), sum(expected) / len(expected)
    together = [sum(row) / len(row) for row in zip(*(one["chance"] for one in layers), strict=True)]
    beaten = sum(whole > one for one in together) / len(together)
    above = [i for i, one in enumerate(layers) if rates[i] > max(one["chance"])]
    because = (
        f"The token that a value promotes follows in {whole:.1%} of the {TOP} contexts where its key fires most, "
        f"against {by_chance:.1%} with values dealt out at random ({max(together):.1%} at most in {len(together)} "
        f"deals). Above every deal: {'layers ' + ', '.join(map(str, above)) if above else 'no layer'} of 0 to "
        f"{len(layers) - 1}."
    )
    numbers = [
        Number("agreement of values with what follows", 100 * whole, "%"),
        Number("the same by chance", 100 * by_chance, "%"),
        *(Number(f"agreement, layer {i}", 100 * rate, "%") for i, rate in enumerate(rates)),
        *(Number(f"by chance, layer {i}", 100 * rate, "%") for i, rate in enumerate(expected)),
        Number("keys of a layer", found["keys"]),
    ]
    x = [f"layer {i}" for i in range(len(layers))]
    bars = {"key and its value": {"x": x, "y": rates}, "dealt out at random": {"x": x, "y": expected}}
    drawing = Drawing("Values that promote what follows", "layer", "share of top contexts", bars, "bars")
    notes = (
        f"{MODEL}, {found['tokens']:,} bytes of text that it was not trained on. Some of its keys: the contexts where "
        "they fire most, and the bytes that their values raise most.",
        *(line(i, one) for i, layer in enumerate(layers) for one in (layer["shown"][0], layer["shown"][-1])),
    )
    return Finding(verdict(beaten >= 0.975), because, numbers, (drawing,), notes)


def line(layer: int, one: dict[str, Any]) -> str:
    contexts = ", ".join(repr(text) for text in one["contexts"])
    how = "the one that agrees most" if one["chosen"] else "drawn at random"
    return (
        f"Layer {layer}, key {one['key']} ({how}, {one['agreement']:.0%}): fires after {contexts}; its value promotes "
        f"{', '.join(repr(token) for token in one['promotes'])}."
    )


KEYS = Exact(
    "key-value",
    "Is the MLP a memory of keys and values?",
    "Column i of W_1 is a key that fires on a pattern of the text, row i of W_2 the value that it adds. If values are "
    "what is remembered, they promote the token that follows where their keys fire, more often than other values.",
    r"m = f(h W_1) \qquad m W_2 = \sum_i m_i W_{2,i}",
    ("w_2", "transformer"),
    (Trial(f"key-value: {MODEL}, {WINDOWS} windows of {LENGTH}, top {TOP}, {PERMUTATIONS} deals", 5.0, work),),
    judged,
)
