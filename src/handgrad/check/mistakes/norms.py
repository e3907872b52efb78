"""Planted: norms."""

from handgrad.check.plant import Mistake
from handgrad.rules import layernorm

MISTAKES = (
    Mistake(
        "variance of d - 1",
        layernorm.forward,
        "centred.square().mean(-1, keepdim=True)",
        "centred.square().sum(-1, keepdim=True) / (centred.shape[-1] - 1)",
        "layer norm",
        "forward",
    ),
    Mistake(
        "epsilon outside the root",
        layernorm.forward,
        "(centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()",
        "1 / (centred.square().mean(-1, keepdim=True).sqrt() + epsilon)",
        "layer norm without offset",
        "forward",
    ),
    Mistake("mean term dropped", layernorm.backward, "addcmul(D - along_1", "addcmul(D", "layer norm", "Delta below"),
    Mistake(
        "x term dropped",
        layernorm.backward,
        "torch.addcmul(D - along_1, x, along_x, value=-1)",
        "(D - along_1)",
        "layer norm",
        "Delta below",
    ),
    Mistake("γ forgotten", layernorm.backward, "Delta * gamma", "Delta * 1.0", "layer norm", "Delta_x"),
    Mistake("dγ from D", layernorm.backward, '"gamma", x, Delta', '"gamma", x, Delta * gamma', "layer norm", "gamma"),
    Mistake("dβ from D", layernorm.backward, '"beta", Delta', '"beta", Delta * gamma', "layer norm", "beta"),
    Mistake("σ multiplied", layernorm.backward, "mul_(over)", "div_(over)", "layer norm", "Delta below"),
)
