"""Planted: RMS norm, further activations, gates, the post-norm block, low-rank updates."""

from handgrad.check.plant import Mistake
from handgrad.core import combine
from handgrad.rules import lowrank, rmsnorm, sigmoid, silu, tanh
from handgrad.rules.fused import lowrank_added

square = "square low-rank update, rslora"

MISTAKES = (
    Mistake(
        "x term dropped",
        rmsnorm.backward,
        "torch.addcmul(D, x, along_x, value=-1)",
        "D.clone()",
        "rms norm",
        "Delta below",
    ),
    Mistake(
        "centred as a layer norm",
        rmsnorm.backward,
        "addcmul(D,",
        "addcmul(D - D.mean(-1, keepdim=True),",
        "rms norm",
        "Delta below",
    ),
    Mistake("γ forgotten", rmsnorm.backward, "Delta * gamma", "Delta * 1.0", "rms norm", "Delta_x"),
    Mistake("dγ from the input", rmsnorm.backward, '"gamma", x', '"gamma", x / over', "rms norm", "gamma"),
    Mistake("ρ multiplied", rmsnorm.backward, "mul_(over)", "div_(over)", "rms norm", "Delta below"),
    Mistake(
        "a sum for a mean",
        rmsnorm.backward,
        ".mean(-1, keepdim=True)",
        ".sum(-1, keepdim=True)",
        "rms norm",
        "Delta below",
    ),
    Mistake(
        "a sum for a mean going up",
        rmsnorm.forward,
        ".mean(-1, keepdim=True)",
        ".sum(-1, keepdim=True)",
        "rms norm",
        "forward",
    ),
    Mistake(
        "epsilon outside the root",
        rmsnorm.forward,
        "(wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()",
        "1 / (wide.square().mean(-1, keepdim=True).sqrt() + epsilon)",
        "rms norm, large epsilon",
        "forward",
    ),
    Mistake(
        "a not multiplied",
        silu.backward,
        "torch.addcmul(gate, a, dgate)",
        "torch.add(gate, dgate)",
        "silu",
        "Delta below",
    ),
    Mistake(
        "gate's slope dropped", silu.backward, "torch.addcmul(gate, a, dgate)", "gate.clone()", "silu", "Delta below"
    ),
    Mistake(
        "1 - σ forgotten", silu.backward, "torch.addcmul(gate, gate, gate, value=-1)", "gate", "silu", "Delta below"
    ),
    Mistake(
        "written into saved", silu.backward, "torch.addcmul(gate, a, dgate)", "gate.add_(a * dgate)", "silu", "purity"
    ),
    Mistake("the gate alone", silu.forward, "a * gate", "gate", "silu", "forward"),
    Mistake("square forgotten", tanh.backward, "saved.y.square()", "saved.y", "tanh", "Delta below"),
    Mistake(
        "1 - a'² not subtracted", tanh.backward, "(1 - saved.y.square())", "saved.y.square()", "tanh", "Delta below"
    ),
    Mistake(
        "sigmoid's slope", tanh.backward, "(1 - saved.y.square())", "(saved.y * (1 - saved.y))", "tanh", "Delta below"
    ),
    Mistake("a sigmoid instead", tanh.forward, "a.tanh()", "a.sigmoid()", "tanh", "forward"),
    Mistake("tanh's slope", sigmoid.backward, "(y * (1 - y))", "(1 - y.square())", "sigmoid", "Delta below"),
    Mistake("1 - a' forgotten", sigmoid.backward, "(y * (1 - y))", "y", "sigmoid", "Delta below"),
    Mistake("Delta from above ignored", sigmoid.backward, "Delta * (y", "(y", "sigmoid", "Delta below"),
    Mistake(
        "the branch's own output",
        combine.Gate.backward,
        "(Delta * g, Delta * f)",
        "(Delta * f, Delta * g)",
        "swiglu",
        "Delta_gate",
    ),
    Mistake("the other branch forgotten", combine.Gate.backward, "Delta * f)", "Delta)", "swiglu", "Delta_up"),
    Mistake("branches added", combine.Gate.forward, "f * g", "f + g", "swiglu", "forward"),
    Mistake("B not transposed", lowrank.backward, "D @ B.mT", "D @ B", square, "lora.Delta_low"),
    Mistake("A not transposed", lowrank.backward, "Delta_low @ A.mT", "Delta_low @ A", square, "Delta below"),
    Mistake("scale forgotten going down", lowrank.backward, "D = s * Delta", "D = Delta", "low-rank update", "lora.B"),
    Mistake(
        "scaled twice", lowrank.backward, '"A", a, Delta_low', '"A", a, s * Delta_low', "low-rank update", "lora.A"
    ),
    Mistake("factors of dA swapped", lowrank.backward, '"A", a, Delta_low', '"A", Delta_low, a', square, "lora.A"),
    Mistake("dB from the input", lowrank.backward, '"B", low, D', '"B", a, D', square, "lora.B"),
    Mistake("scale left out", lowrank.forward, "s * (low @ B)", "low @ B", "low-rank update", "forward"),
    Mistake("scale left out of the sum", lowrank_added.forward, "B, alpha=s)", "B)", "low-rank update", "agreement"),
    Mistake(
        "dB without its scale",
        lowrank_added.backward,
        '"B", s * low, Delta',
        '"B", low, Delta',
        "low-rank update",
        "agreement",
    ),
    Mistake(
        "A not transposed on the way down",
        lowrank_added.backward,
        "rows(Delta_low), A.mT)",
        "rows(Delta_low), A)",
        square,
        "agreement",
    ),
    Mistake(
        "Δ_low without its scale",
        lowrank_added.backward,
        "Delta_low = s * (Delta @ B.mT)",
        "Delta_low = Delta @ B.mT",
        "low-rank update with dropout",
        "agreement",
    ),
)
