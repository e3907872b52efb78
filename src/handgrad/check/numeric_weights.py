"""Numeric checks of the rungs that compare several layers. Each raises `LawBroken`; none takes an argument."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check.case import normal
from handgrad.check.laws import off, require, same
from handgrad.check.steps import Steps, steps
from handgrad.core import Buffer, Chain, Layer, Layout, Run
from handgrad.core.errors import ShapeError
from handgrad.layers import rungs
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mask import Everyone
from handgrad.layers.mixing import FixedWeights, Mixing
from handgrad.layers.multihead import MultiHead
from handgrad.layers.recurrent import rnn
from handgrad.layers.scores import SAME, Additive
from handgrad.rules.relu import RELU
from handgrad.rules.weights_normalise import DIVIDE, KEEP, SOFTMAX, softened

B, T, W, FUNCTIONS, RANK, INNER = 3, 5, 7, 2, 3, 11


def drawn(layer: Layer, seed: int = 1, **given: Tensor) -> Buffer:
    """Random parameters of standard deviation 1/2, but for those given by name (dots as `__`)."""
    p = Layout(layer.slots()).zeros(torch.float64)
    for name in p:
        p[name].copy_(given.get(name.replace(".", "__"), normal(p[name].shape, seed, name) / 2))
    return p


def tokens(seed: int = 1, samples: int = B) -> Tensor:
    return normal((samples, T, W), seed, "tokens")


def run(layer: Layer, p: Buffer, a: Tensor) -> Tensor:
    return layer.forward(p.tree, a, Run())[0]


def differs(found: Tensor, right: Tensor, what: str, least: float = 1e-3) -> None:
    require(off(found, right) > least, f"{what} are equal, and must not be")


def longer_is_refused() -> None:
    """Fixed weights run on any length up to what was learned, and on no longer one."""
    layer = FixedWeights(T, W)
    p = drawn(layer)
    for length in range(1, T + 1):
        require(run(layer, p, tokens()[:, :length]).shape == (B, length, W), f"no output for {length} tokens")
    try:
        run(layer, p, normal((B, T + 1, W), 1, "longer"))
    except ShapeError:
        return
    require(False, f"{T + 1} tokens ran through weights for {T}")


def symmetric_without_the_end() -> None:
    """Weights of the source alone: units that read the same sources compute the same; of both tokens, they do not."""
    a = tokens()
    same_for_all = rungs.source_only(W, FUNCTIONS, Everyone())
    o = run(same_for_all, drawn(same_for_all), a)
    same(o, o[:, :1].expand_as(o), "the output of one unit and that of another")
    own = Mixing(Additive(W, INNER, 1), 1, mask=Everyone(), normalise=KEEP)
    o = run(own, drawn(own), a)
    differs(o, o[:, :1].expand_as(o), "all units of weights f(x_α, x_β)")


def neighbours_are_alike() -> None:
    """Causal, and of the source alone: a unit is its neighbour plus one term. Measured by `likeness`."""
    layer = rungs.source_only(W, FUNCTIONS)
    p, a = drawn(layer), tokens()
    o = run(layer, p, a)
    f = F.linear(a, p["score.function.w"].mT, p["score.function.b"])
    term = sum(f[:, :, j, None] * (a @ V) for j, V in enumerate(p["out.w"].chunk(FUNCTIONS)))
    assert isinstance(term, Tensor)
    same(o[:, 1:] - o[:, :-1], term[:, 1:], "the difference of two neighbours")
    both = rungs.matrix_sum(Additive(W, INNER, FUNCTIONS), W, FUNCTIONS)
    found = likeness(o), likeness(run(both, drawn(both), a))
    require(found[0] > found[1], f"likeness of neighbours {found[0]:.3f}, and {found[1]:.3f} with weights of both")


def likeness(o: Tensor) -> float:
    """Mean cosine between the outputs of neighbouring units, o ~ (B, T, d)."""
    return float(F.cosine_similarity(o[:, 1:], o[:, :-1], dim=-1).mean())


def alone() -> None:
    """Weights of the unit itself: a change of one token changes that unit's output and no other."""
    layer = rungs.self_only(W, FUNCTIONS)
    p, a = drawn(layer), tokens()
    moved = a.clone()
    moved[:, 2] += 1
    changed = (run(layer, p, moved) != run(layer, p, a)).any(-1).any(0)
    require(
        changed.tolist() == [t == 2 for t in range(T)], f"units changed: {changed.tolist()}, and only unit 2 should"
    )


def unique_weights() -> None:
    """f(x_α, x_β): no two pairs of a sample share a weight, as pairs with one source do under f(x_β)."""
    both, source = Additive(W, INNER, 1), rungs.single(W, 1, rungs.SOURCE)
    counts = [len(run(layer, drawn(layer), tokens())[0].flatten().unique()) for layer in (both, source)]
    require(counts == [T * T, T], f"different weights among {T * T} pairs: {counts}")


def parameter_counts() -> None:
    """d² functions, d functions, F functions and F matrices: what each rung has to learn (hidden layer included)."""
    hidden = 2 * W * INNER + INNER
    found = [Layout(layer.slots()).count for layer in three(FUNCTIONS)]
    right = [hidden + INNER * W * W, hidden + INNER * W, hidden + INNER * FUNCTIONS + FUNCTIONS * W * W]
    require(found == right, f"parameters {found}, and {right} are right")


def three(functions: int) -> tuple[Layer, Layer, Layer]:
    return (
        rungs.full_matrix(W, INNER),
        rungs.diagonal(W, INNER),
        rungs.matrix_sum(Additive(W, INNER, functions), W, functions),
    )


def one_hot_sum() -> None:
    """Σ_j f_j V_j is the diagonal where V_j has a single one, at (j, j); and the full matrix holds the diagonal."""
    full, diagonal, matrices = three(W)
    p, a = drawn(diagonal), tokens()
    named = {name.replace(".", "__"): p[name] for name in p}
    eye = torch.eye(W, dtype=torch.float64)
    one_hot = torch.einsum("ji,jk->jik", eye, eye).reshape(W * W, W)  # V_j side by side: a one at (j, j)
    right = run(diagonal, p, a)
    same(run(matrices, drawn(matrices, out__w=one_hot, **named), a), right, "Σ f_j V_j with one-hot V_j")
    spread = torch.zeros(INNER, W * W, dtype=torch.float64)
    spread[:, :: W + 1] = p["score.w"]
    same(run(full, drawn(full, **(named | {"score__w": spread})), a), right, "the matrix with zeros off the diagonal")
    differs(run(matrices, drawn(matrices, **named), a), right, "other V_j and one-hot ones")


def mixed_difference(f: Callable[[Tensor, Tensor], Tensor], a: Tensor, a2: Tensor, b: Tensor, b2: Tensor) -> Tensor:
    """f(a, b) - f(a', b) - f(a, b') + f(a', b'): exactly 0 where f = g(a) + h(b), so it measures interaction alone."""
    return f(a, b) - f(a2, b) - f(a, b2) + f(a2, b2)


def interaction() -> None:
    """The mixed difference of a sum is 0, of a product (a - a')(b - b'); tanh of a sum interacts little near 0."""
    a, a2, b, b2 = (normal((1000,), 1, name) for name in ("a", "a2", "b", "b2"))
    by_sum, by_tanh, by_product = (
        mixed_difference(f, a, a2, b, b2) for f in (lambda x, y: x + y, lambda x, y: (x + y).tanh(), lambda x, y: x * y)
    )
    require(float(by_sum.abs().max()) < 1e-14, "a sum interacts")
    same(by_product, (a - a2) * (b - b2), "the mixed difference of a product")
    require(0 < float(by_tanh.abs().mean()) < float(by_product.abs().mean()), "tanh interacts more than a product")
    small = [mixed_difference(lambda x, y: (x + y).tanh(), *(s * x for x in (a, a2, b, b2))) for s in (1e-2, 1e-3)]
    order = float((small[0].abs().mean() / small[1].abs().mean()).log10())
    require(2.9 < order < 3.1, f"near 0 the interaction of tanh falls with the power {order:.2f}, and with 3 it should")
    large = mixed_difference(lambda x, y: (x + y).tanh(), *(100 * x.abs() for x in (a, a2, b, b2)))
    require(float(large.abs().mean()) < 1e-2, "far from 0 tanh is flat, and interacts with nothing")


def removable() -> None:
    """Each of the three terms can be left out, and the three left alone add up to all of them."""
    score = rungs.low_rank(W, FUNCTIONS, RANK)
    whole = rungs.terms(score, W, FUNCTIONS, True, True)
    p, a = drawn(whole), tokens()
    parts = [
        rungs.terms(None, W, FUNCTIONS, True, False),
        rungs.terms(score, W, FUNCTIONS, False, False),
        rungs.terms(None, W, FUNCTIONS, False, True),
    ]
    named = {name.replace(".", "__"): p[name] for name in p}
    one, two, three_ = (run(part, drawn(part, **named), a) for part in parts)
    same(one + two + three_, run(whole, p, a), "the sum of the three terms")
    f = SOFTMAX.forward(one + two, None, run=Run())[0]
    same(f, SOFTMAX.forward(two, None, run=Run())[0], "weights with and without g(x_α), which a softmax takes out")


def identity() -> None:
    """A = I is the dot product; A = w_q w_kᵗ the form of rank r."""
    a, dot = tokens(), rungs.dot()
    right = run(dot, drawn(dot), a)
    form = rungs.bilinear(W, 1)
    same(run(form, drawn(form, end__w=torch.eye(W, dtype=torch.float64)), a), right, "x_α I x_βᵗ and x_α·x_β")
    low = rungs.low_rank(W, FUNCTIONS, RANK)
    p = drawn(low)
    A = [q @ k.mT for q, k in zip(p["end.w"].chunk(FUNCTIONS, 1), p["source.w"].chunk(FUNCTIONS, 1), strict=True)]
    form = rungs.bilinear(W, FUNCTIONS)
    same(run(form, drawn(form, end__w=torch.cat(A, 1)), a), run(low, p, a), "x_α A x_βᵗ and q_α·k_β")
    require(all(int(torch.linalg.matrix_rank(M)) == RANK for M in A), f"A is not of rank {RANK}")


def cache_bytes(length: int = 5000, layers: int = 50, heads: int = 20, features: int = 1000, itemsize: int = 2) -> int:
    """What must be kept of earlier tokens: one vector of `features` for each token, layer and head."""
    return length * layers * heads * features * itemsize


def caches() -> None:
    """10 GB for whole vectors of 1000 features, 2 GB for 200."""
    found = cache_bytes(), cache_bytes(features=200)
    require(found == (10 * 10**9, 2 * 10**9), f"{found} bytes")


def normalised() -> None:
    """Kept weights grow with the length; divided and softened ones add up to 1; a small τ makes them sparse."""
    score = normal((1, 1, 64, 64), 1, "score").abs() + 0.1
    allowed = torch.ones(64, 64, dtype=torch.bool).tril()
    rows = {rule.name: rule.forward(score, allowed, run=Run())[0][0, 0] for rule in (KEEP, DIVIDE, SOFTMAX)}
    sums = rows["keep"].sum(-1)
    require(float(sums[-1] / sums[0]) > 20, "the sums of kept weights do not grow with the length")
    for name in ("divide", "softmax at 1.0"):
        same(rows[name].sum(-1), torch.ones(64, dtype=torch.float64), f"the sum of a row under {name}")
    spread = []
    for tau in (0.1, 1.0, 10.0):
        rho = softened(tau).forward(score, allowed, run=Run())[0][0, 0, -1]
        spread.append((float(rho.max()), float(-(rho * rho.log()).sum())))
    require(spread[0][0] > spread[1][0] > spread[2][0], f"the largest weight does not fall as τ rises: {spread}")
    require(spread[0][1] < spread[1][1] < spread[2][1], f"the entropy does not rise with τ: {spread}")


def heads() -> None:
    """Σ_h ρ_h (x V_h) = concat_h(ρ_h v_h) W_o where V_h = w_v^h W_o^h; r numbers are kept a head instead of d."""
    score, a = rungs.low_rank(W, FUNCTIONS, RANK), tokens()
    narrow, whole = rungs.heads(score, W, FUNCTIONS, RANK), rungs.matrix_sum(score, W, FUNCTIONS, SOFTMAX)
    p = drawn(narrow)
    pairs = zip(p["value.w"].chunk(FUNCTIONS, 1), p["out.w"].chunk(FUNCTIONS), strict=True)
    named = {n.replace(".", "__"): p[n] for n in p if n.startswith("score")}
    V = torch.cat([w_v @ w_o for w_v, w_o in pairs])
    same(run(whole, drawn(whole, out__w=V, **named), a), run(narrow, p, a), "the sum over heads and concat W_o")
    require(cache_bytes(features=200) * 5 == cache_bytes(), "the cache does not shrink by d/r")


def absorbed() -> None:
    """W_1 can be absorbed into the matrices V exactly where there is neither a second skip nor a norm before it.

    What f reads is fitted, over many tokens, by Σ_h c_h V'_h for any V' whatever (c_h = Σ_β ρ_h x_β). Without second
    skip and norm a V' fits to the last digit, and it is V W_1; with either of them the best V' leaves a rest.
    """
    mixing = rungs.matrix_sum(rungs.low_rank(W, FUNCTIONS, RANK), W, FUNCTIONS, SOFTMAX)
    w_1, w_2 = Linear(W, INNER, bias=False), Linear(INNER, W)
    one = rungs.unit(mixing, RELU, w_1, w_2)
    p, a = drawn(one), tokens(samples=200)
    V = p["mixing.out.w"] @ p["up.w"]
    wide = Mixing(mixing.score, FUNCTIONS, SAME, Linear(FUNCTIONS * W, INNER, False), True)
    without = rungs.unit(wide, RELU, w_2=w_2)
    named = {n.replace(".", "__"): p[n] for n in p if n != "mixing.out.w"}
    same(run(without, drawn(without, mixing__out__w=V, **named), a), run(one, p, a), "with V W_1, and with V and W_1")

    found = rests()
    require(found["neither"] < 1e-12, f"W_1 leaves a rest of {found['neither']:.1e} without second skip and norm")
    for name in ("second skip", "norm", "both"):
        require(found[name] > 1e-2, f"W_1 is absorbed in spite of {name}: rest {found[name]:.1e}")


def rests() -> dict[str, float]:
    """What the best V' leaves unexplained of what f reads, with and without second skip and norm."""
    sums = Mixing(rungs.low_rank(W, FUNCTIONS, RANK), FUNCTIONS, shared=True)
    a, norm = tokens(samples=200), LayerNorm(W)
    V, w_1 = normal((FUNCTIONS * W, W), 1, "V") / 2, normal((W, INNER), 1, "w_1") / 2
    c, x = run(sums, drawn(sums), a).flatten(0, 1), a.flatten(0, 1)
    o = c @ V
    read = {"neither": o, "second skip": x + o, "norm": normed(norm, o), "both": normed(norm, x + o)}
    return {name: rest(c, u @ w_1) for name, u in read.items()}


def normed(norm: LayerNorm, u: Tensor) -> Tensor:
    return run(norm, drawn(norm), u)


def rest(c: Tensor, wanted: Tensor) -> float:
    """The part of `wanted` that no matrix times c can give."""
    fitted = c @ torch.linalg.lstsq(c, wanted).solution
    return float((fitted - wanted).norm() / wanted.norm())


def patterns() -> None:
    """Without W_2 a unit writes one coordinate, so there are d units; with it each writes a vector."""
    without = Chain(rungs.pieces(RELU, None, None))
    with_2 = Chain(rungs.pieces(RELU, None, Linear(INNER, W, bias=False)))
    found = written(without, W), written(with_2, INNER)
    right = [1] * W, [W] * INNER
    require(found == right, f"coordinates that each unit writes: {found}, and {right} are right")


def written(mlp: Layer, units: int) -> list[int]:
    """How many coordinates of the output change with each unit alone."""
    p, o = drawn(mlp), normal((1, 1, units), 1, "sums").abs()
    raised = [o + F.one_hot(torch.tensor(i), units) for i in range(units)]
    return [int((run(mlp, p, other) != run(mlp, p, o)).sum()) for other in raised]


def key_value_store() -> None:
    """f(x W_1) W_2 = Σ_i f(x·key_i) value_i, key i = column i of W_1 and value i = row i of W_2."""
    mlp = Chain(rungs.pieces(RELU, Linear(W, INNER), Linear(INNER, W, bias=False)))
    p, x = drawn(mlp), tokens()
    out = torch.zeros_like(x)
    for i in range(INNER):
        key, value = p["up.w"][:, i], p["down.w"][i]
        m = (x @ key + p["up.b"][i]).relu()
        out += m[..., None] * value
    same(run(mlp, p, x), out, "the MLP read as keys and values")


def dependent_steps() -> None:
    """Two recurrent layers need 2 + (T-1) steps, two attention layers 2 at any length: counted on the real graph."""
    found = {length: (of_rnn(length).units, of_attention(length).units) for length in (1, 4, 16)}
    right = {length: (2 + (length - 1), 2) for length in (1, 4, 16)}
    require(found == right, f"steps by length {found}, and {right} are right")
    more = of_rnn(16).operations - of_rnn(4).operations, of_attention(16).operations - of_attention(4).operations
    require(more[0] > 0 == more[1], f"12 tokens more take {more[0]} and {more[1]} operations more, one after another")


def of_rnn(length: int) -> Steps:
    return steps(Chain({"first": rnn(W, W), "second": rnn(W, W)}), W, length, ("*.h",))


def of_attention(length: int) -> Steps:
    return steps(Chain({"first": MultiHead(W, 1), "second": MultiHead(W, 1)}), W, length, ("first", "second"))
