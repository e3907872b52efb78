"""Registry: data and loss, embedding, fully connected, normalisation."""

from handgrad.check.equation import section

loss = section("data and loss")
embedding = section("embedding")
dense = section("fully connected")
norm = section("normalisation")

EQUATIONS = (
    loss(
        "shift",
        "target of row p is t_{p+1}; T-1 terms count",
        "Δ_logits = 0 on rows without a target",
        "handgrad.models.model:Model.aimed",
        "rules/loss.md",
        "handgrad.check.numeric_positions:shift",
    ),
    loss(
        "cross-entropy",
        "P = softmax(logits); L = -(1/n) Σ_valid log P[y]",
        "Δ_logits = (P - OHE(y))/n on valid rows, 0 elsewhere",
        "handgrad.rules.crossentropy:backward",
        "rules/loss.md",
        "case:cross-entropy",
    ),
    loss(
        "smoothing",
        "targets (1-s) OHE(y) + s/V on valid rows",
        "Δ_logits = (P - (1-s) OHE(y) - s/V)/n",
        "handgrad.rules.smoothed:backward",
        "rules/loss.md",
        "case:smoothed cross-entropy + handgrad.check.numeric_positions:smoothing_splits",
    ),
    loss(
        "z-loss",
        "L + (z/n) Σ_valid (logsumexp)²",
        "Δ_logits + (2z/n) logsumexp · P",
        "handgrad.rules.zloss:backward",
        "rules/loss.md",
        "case:z-loss + handgrad.check.numeric_positions:z_loss_slope",
        optional=True,
    ),
    embedding(
        "token-embedding",
        "a = OHE(t) w_emb",
        "∂L/∂w_emb = OHE(t)ᵗ Δ; nothing flows below",
        "handgrad.rules.embed:backward",
        "rules/embedding.md",
        "case:token embedding",
    ),
    embedding(
        "learned-position",
        "a = a_token + OHE(position) w_pos",
        "∂L/∂w_pos = OHE(position)ᵗ Δ; both stores get the whole Δ",
        "handgrad.layers.embedding:PositionEmbedding",
        "rules/embedding.md",
        "case:position embedding + handgrad.check.numeric_positions:both_stores",
    ),
    embedding(
        "sinusoidal-position",
        "a' = a + table of sin and cos",
        "Δ = Δ'",
        "handgrad.rules.sinusoidal:backward",
        "rules/embedding.md",
        "case:sinusoidal + handgrad.check.numeric_positions:sinusoidal_turns",
    ),
    embedding(
        "rotary",
        "q'(t) = q(t) R_t; k'(t) = k(t) R_t",
        "Δ_q(t) = Δ_q'(t) R_tᵗ",
        "handgrad.rules.rope:backward",
        "rules/rope.md",
        (
            "case:rotary half-split + "
            "case:rotary interleaved, after 3 tokens + "
            "handgrad.check.numeric_positions:rotary_relativity + "
            "handgrad.check.numeric_positions:rotary_pairings"
        ),
    ),
    embedding(
        "alibi",
        "raw' = raw + slope_h (β-α) for β ≤ α",
        "Δ_raw = Δ_raw'",
        "handgrad.rules.alibi:backward",
        "rules/rope.md",
        "case:alibi after a cache + handgrad.check.numeric_positions:alibi_bias",
        optional=True,
    ),
    embedding(
        "tying",
        "logits = a_L w_embᵗ",
        "∂L/∂w_emb = OHE(t)ᵗ Δ + Δ_logitsᵗ a_L",
        "handgrad.rules.unembed:backward",
        "rules/embedding.md",
        "case:gpt-2 + handgrad.check.numeric_positions:tying",
    ),
    dense(
        "linear",
        "a' = a w + 1 b",
        "Δ = Δ' wᵗ; ∂L/∂w = aᵗ Δ'; ∂L/∂b = 1ᵗ Δ'",
        "handgrad.rules.linear:backward",
        "rules/pointwise.md",
        "case:linear",
    ),
    dense(
        "pointwise",
        "a' = f(a): ReLU, GELU, SiLU, tanh, sigmoid",
        "Δ = Δ' ∘ f'(a)",
        "handgrad.rules.gelu:tanh_backward",
        "rules/pointwise.md",
        "case:gelu tanh + case:gelu erf + case:relu + case:silu + case:tanh + case:sigmoid",
    ),
    dense(
        "gated",
        "a' = silu(a w_g) ∘ (a w_u)",
        "Δ = (Δ' ∘ a w_u ∘ silu'(a w_g)) w_gᵗ + (Δ' ∘ silu(a w_g)) w_uᵗ",
        "handgrad.core.combine:Gate",
        "rules/pointwise.md",
        "case:swiglu + handgrad.check.numeric_gates:gate_product_rule",
    ),
    dense(
        "residual",
        "a' = a + f(a)",
        "Δ = Δ' + f*(Δ')",
        "handgrad.core.combine:Residual.backward",
        "rules/pointwise.md",
        "case:sequence of residuals + handgrad.check.numeric_gates:residual_adds",
    ),
    dense(
        "dropout",
        "a' = a ∘ m/(1-p)",
        "Δ = Δ' ∘ m/(1-p), the same m",
        "handgrad.rules.dropout:backward",
        "rules/pointwise.md",
        "case:dropout + recompute:dropout",
    ),
    norm(
        "layer-norm",
        "x = (a - μ)/√(σ² + ε); a' = x ∘ γ + β",
        "D = Δ' ∘ γ; Δ = (D - mean(D) - x ∘ mean(D ∘ x))/√(σ² + ε); ∂L/∂γ = 1ᵗ(Δ' ∘ x); ∂L/∂β = 1ᵗ Δ'",
        "handgrad.rules.layernorm:backward",
        "rules/norms.md",
        "case:layer norm + handgrad.check.numeric_gates:layer_norm_orthogonal",
    ),
    norm(
        "rms-norm",
        "x = a/√(mean(a²) + ε); a' = x ∘ γ",
        "D = Δ' ∘ γ; Δ = (D - x ∘ mean(D ∘ x))/√(mean(a²) + ε); ∂L/∂γ = 1ᵗ(Δ' ∘ x)",
        "handgrad.rules.rmsnorm:backward",
        "rules/norms.md",
        "case:rms norm + handgrad.check.numeric_gates:rms_norm_orthogonal",
    ),
)
