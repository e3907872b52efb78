"""A training step that looks at every sample: norms, the noise of the gradient, clipping sample by sample.

g_b       gradient of sample b's own mean loss; w_b = n_b/n, its share of the step's targets; Σ_b w_b g_b is the step's
f_b       min(1, C/‖g_b‖) with `sample_clip` C, else 1; the step's gradient becomes G = Σ_b w_b f_b g_b
trΣ, |G|² how far the f_b g_b scatter about their expectation, and the square of that expectation, without bias:
              trΣ  = (Σ_b w_b ‖f_b g_b‖² - ‖G‖²)/(1 - Σ_b w_b²)          |G|² = ‖G‖² - trΣ Σ_b w_b²
          since E ‖f_b g_b‖² = |G|² + trΣ and E ‖G‖² = |G|² + trΣ Σ_b w_b², for samples drawn independently
B_simple  = trΣ/|G|², the batch size from which on larger ones bring little (McCandlish et al., arXiv 1812.06162)

Norms cost no pass of their own. Clipping needs all of a sample's norm before any of its gradient is added: where the
factors of a pass are smaller than the parameters, they are kept and added afterwards; else there is a second pass.
Clipping sample by sample bounds what one sample can do to a step. It is no privacy: no noise is added, and nothing is
accounted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.run import Run
from handgrad.models.model import Model
from handgrad.models.samples import inverse
from handgrad.receivers.sample_norms import SampleNorms
from handgrad.receivers.several import Both, Kept, Measured, Weighted
from handgrad.train.config import TrainConfig


class Figures(NamedTuple):
    """What a step's samples say; the noise is None where one sample, or too noisy a step, says nothing about it."""

    norm_median: float
    norm_max: float
    clipped: float  # share of the samples, 0 … 1
    noise_trace: float | None
    signal_square: float | None
    noise_scale: float | None

    def record(self) -> dict[str, float | None]:
        """As a line of metrics.jsonl has it."""
        names = ("sample_norm_median", "sample_norm_max", "samples_clipped", *self._fields[3:])
        return dict(zip(names, self, strict=True))


@dataclass
class Sampled:
    """Backward passes of one step, with every sample's norm measured; `clip` 0 is off.

    lean   never keep factors, but go a second time: where memory is what counts
    """

    clip: float = 0.0
    lean: bool = False
    norms: list[Tensor] = field(default_factory=list)  # ‖g_b‖ of each micro-batch
    weights: list[Tensor] = field(default_factory=list)  # w_b

    @classmethod
    def of(cls, config: TrainConfig) -> Sampled | None:
        """None where nobody asks for samples."""
        if not config.sample_clip and not config.sample_norms:
            return None
        return cls(config.sample_clip, config.update == "inside")

    def loss_and_backward(
        self, model: Model, tokens: Tensor, targets: Tensor, grads: Gradients, *, n_valid: int, run: Run
    ) -> Tensor:
        """The mean loss, unclipped; `grads` receives what the step shall use, and the norms are noted."""
        norms = SampleNorms.of(model.params.layout, tokens)
        if not self.clip:
            loss = model.loss_and_backward(tokens, targets, Measured(norms, grads), n_valid=n_valid, run=run)
            self._note(norms, targets, n_valid)
            return loss
        kept = Kept() if not self.lean and worth_keeping(model, tokens) else None
        first = norms if kept is None else Both(norms, kept)
        loss = model.loss_and_backward(tokens, targets, first, n_valid=n_valid, run=run)
        self._note(norms, targets, n_valid)
        weighted = Weighted(grads, shrinking(self.norms[-1], self.clip))
        if kept is None:
            model.loss_and_backward(tokens, targets, weighted, n_valid=n_valid, run=run)
        else:
            kept.hand_over(weighted)
        return loss

    def again(
        self, model: Model, tokens: Tensor, targets: Tensor, grads: Gradients, *, n_valid: int, run: Run
    ) -> Tensor:
        """The pass of the last micro-batch once more, with what was found the first time."""
        receiver = Weighted(grads, shrinking(self.norms[-1], self.clip)) if self.clip else grads
        return model.loss_and_backward(tokens, targets, receiver, n_valid=n_valid, run=run)

    def _note(self, norms: SampleNorms, targets: Tensor, n_valid: int) -> None:
        norms.finished()
        found = norms.norms()
        w = (targets >= 0).sum(1).to(found.dtype) / n_valid
        self.weights.append(w)
        self.norms.append(found * inverse(w))

    def figures(self, grad_norm: float) -> Figures:
        """Of the whole step, whose gradient had this norm before it was clipped as a whole."""
        norms, w = torch.cat(self.norms).double(), torch.cat(self.weights).double()
        norms, w = norms[w > 0], w[w > 0]
        added = norms.clamp(max=self.clip) if self.clip else norms
        rest, square = float(1 - w.square().sum()), grad_norm**2
        trace = signal = scale = None
        if rest > 1e-9:
            trace = (float((w * added.square()).sum()) - square) / rest
            signal = square - trace * (1 - rest)
            scale = trace / signal if signal > 0 else None
        clipped = float((norms > self.clip).double().mean()) if self.clip else 0.0
        return Figures(float(norms.quantile(0.5)), float(norms.max()), clipped, trace, signal, scale)


def shrinking(norms: Tensor, most: float) -> Tensor:
    """What to multiply gradients of these norms by.

    >>> shrinking(torch.tensor([0.0, 2.0, 8.0]), 4.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    return torch.where(norms > most, most / norms, torch.ones_like(norms))


def worth_keeping(model: Model, tokens: Tensor) -> bool:
    """Whether the factors of a pass take less memory than the parameters."""
    widths = sum(sum(shape) for _, shape in model.params.layout.places.values() if len(shape) > 1)
    return tokens.numel() * widths < model.params.layout.count
