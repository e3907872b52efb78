"""Planted: smoothed targets, z-loss."""

from handgrad.check.plant import Mistake
from handgrad.rules import smoothed, zloss

plain = "smoothed cross-entropy"

MISTAKES = (
    Mistake("all of the target kept", smoothed.backward, "s - 1)", "-1.0)", plain, "Delta below"),
    Mistake("nothing spread", smoothed.backward, "D.sub_(share * (wide != -inf))", "D", plain, "Delta below"),
    Mistake(
        "spread over all but the target",
        smoothed.forward,
        "s / exists.sum(-1, keepdim=True).to(wide.dtype)",
        "s / (exists.sum(-1, keepdim=True).to(wide.dtype) - 1)",
        plain,
        "forward",
    ),
    Mistake("rows without a target", smoothed.backward, ".masked_fill_(~valid, 0.0)", "", plain, "Delta below"),
    Mistake("a mean over all rows", smoothed.backward, "Delta / max(n, 1)", "Delta / len(y)", plain, "Delta below"),
    Mistake(
        "a token that does not exist gets a share",
        smoothed.backward,
        "share * (wide != -inf)",
        "share",
        "smoothed cross-entropy, a token that does not exist",
        "Delta below",
    ),
    Mistake("2 of the square dropped", zloss.backward, "2 * z * lse", "z * lse", "z-loss", "Delta below"),
    Mistake("lse dropped", zloss.backward, "2 * z * lse", "2 * z", "z-loss", "Delta below"),
    Mistake(
        "Delta from above ignored", zloss.backward, "(Delta / max(n, 1))", "(1 / max(n, 1))", "z-loss", "Delta below"
    ),
    Mistake(
        "P forgotten", zloss.backward, ".exp_().mul_(Delta_lse)", ".mul_(0).add_(Delta_lse)", "z-loss", "Delta below"
    ),
    Mistake("rows without a target", zloss.backward, ".masked_fill_(~valid, 0.0)", "", "z-loss", "Delta below"),
    Mistake("this batch's n", zloss.forward, "max(n, 1)", "int(valid.sum())", "z-loss, a part of a step", "forward"),
    Mistake("not squared", zloss.forward, "lse.square()", "lse", "z-loss", "forward"),
)
