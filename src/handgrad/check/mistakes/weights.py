"""Planted: rebuilding the weights."""

from handgrad.check.plant import Mistake
from handgrad.layers import mixing, scores
from handgrad.rules import (
    weights_fixed,
    weights_matrix,
    weights_mix,
    weights_normalise,
    weights_product,
    weights_spread,
)

product, mix, spread, one_k, one_v = (
    "product score",
    "mixing",
    "score of the end",
    "product score, one k for all",
    "mixing, one v for all",
)
MISTAKES = (
    Mistake("q for k", weights_product.backward, "Delta @ k", "Delta @ q", product, "Delta below 0"),
    Mistake("Δ not transposed", weights_product.backward, "Delta.mT @ q", "Delta @ q", product, "Delta below 1"),
    Mistake(
        "one reader of k only", weights_product.backward, "Delta_k.sum(1, ", "Delta_k.mean(1, ", one_k, "Delta below 1"
    ),
    Mistake("k before q", weights_product.forward, "q @ k.mT", "k @ q.mT", product, "forward"),
    Mistake("ρ not transposed", weights_mix.backward, "rho.mT @ Delta", "rho @ Delta", mix, "Delta below 1"),
    Mistake("Δ_ρ turned", weights_mix.backward, "Delta @ v.mT", "v @ Delta.mT", mix, "Delta below 0"),
    Mistake(
        "one reader of v only", weights_mix.backward, "Delta_v.sum(1, ", "Delta_v.mean(1, ", one_v, "Delta below 1"
    ),
    Mistake("columns for rows", weights_mix.forward, "rho @ v)", "rho.mT @ v)", mix, "forward"),
    Mistake("the mean of a row", weights_spread.end_backward, "Delta.sum(-1)", "Delta.mean(-1)", spread, "Delta below"),
    Mistake("the other token's", weights_spread.end_backward, "Delta.sum(-1)", "Delta.sum(-2)", spread, "Delta below"),
    Mistake(
        "the first unit only",
        weights_spread.source_backward,
        "Delta.sum(-2)",
        "Delta[..., 0, :]",
        "score of the source",
        "Delta below",
    ),
    Mistake(
        "along the wrong token",
        weights_spread.source_forward,
        "unsqueeze(-2)",
        "unsqueeze(-1)",
        "score of the source",
        "forward",
    ),
    Mistake(
        "what is masked sent down",
        weights_normalise.keep_backward,
        "kept(Delta_rho, saved.allowed)",
        "Delta_rho",
        "weights kept",
        "Delta below",
    ),
    Mistake(
        "the sum taken as a constant",
        weights_normalise.divide_backward,
        "(wide - along_rho) / over",
        "wide / over",
        "divide by sum",
        "Delta below",
    ),
    Mistake(
        "not divided going down",
        weights_normalise.divide_backward,
        "(wide - along_rho) / over",
        "(wide - along_rho)",
        "divide by sum",
        "Delta below",
    ),
    Mistake(
        "weights after the token divided too",
        weights_normalise.divide_backward,
        "kept(Delta_kept, allowed)",
        "Delta_kept",
        "divide by sum",
        "Delta below",
    ),
    Mistake(
        "ρ in the wrong place",
        weights_normalise.divide_backward,
        "(wide * rho)",
        "wide",
        "divide by sum",
        "Delta below",
    ),
    Mistake(
        "the sum with what is masked",
        weights_normalise.divide_forward,
        "over = wide",
        "over = score",
        "divide by sum",
        "forward",
    ),
    Mistake(
        "τ forgotten",
        weights_normalise.softened_backward,
        "Delta_warm / tau",
        "Delta_warm * 1.0",
        "weights softened",
        "Delta below",
    ),
    Mistake(
        "row sums forgotten",
        weights_normalise.softened_backward,
        "rho * (wide - along_rho)",
        "rho * wide",
        "weights softened",
        "Delta below",
    ),
    Mistake(
        "τ multiplied", weights_normalise.softened_forward, "score / tau", "score * tau", "weights softened", "forward"
    ),
    Mistake(
        "Δ_W transposed",
        weights_matrix.backward,
        '"bsi,btj->bijts", x, Delta',
        '"bsi,btj->bijst", x, Delta',
        "matrix of weights",
        "Delta below 0",
    ),
    Mistake(
        "W of the wrong pair",
        weights_matrix.backward,
        '"bijts,btj->bsi", W',
        '"bijst,btj->bsi", W',
        "matrix of weights",
        "Delta below 1",
    ),
    Mistake("W transposed", weights_matrix.forward, "bsi->btj", "bsj->bti", "full matrix function", "forward"),
    Mistake(
        "ends and sources exchanged", weights_matrix.forward, "bijts,bsi", "bijst,bsi", "matrix of weights", "forward"
    ),
    Mistake(
        "the last reader only", weights_fixed.backward, "+= (Delta_t", "= (Delta_t", "fixed weights", "Delta below"
    ),
    Mistake(
        "gradient of the unit alone",
        weights_fixed.backward,
        '"w", read.flatten(1), Delta_t',
        '"w", (0 * read).flatten(1) + read[:, -1:].repeat(1, t + 1, 1).flatten(1), Delta_t',
        "fixed weights",
        "1.w",
    ),
    Mistake(
        "the last tokens instead of all",
        weights_fixed.forward,
        "x[:, : t + 1]",
        "x[:, : t + 1].flip(1)",
        "fixed weights",
        "forward",
    ),
    Mistake(
        "another unit's error",
        weights_fixed.backward,
        "(Delta_t @ w[t].mT)",
        "(Delta[:, 0] @ w[t].mT)",
        "fixed weights",
        "Delta below",
    ),
    Mistake(
        "its own twice",
        mixing.Mixing.backward,
        "(Delta_score, joined(Delta_v))",
        "(Delta_score, 2 * joined(Delta_v))",
        "heads",
        "Delta_value",
    ),
    Mistake(
        "error of the weights for the error of the scores",
        mixing.Mixing.backward,
        "(Delta_score, joined",
        "(Delta_rho, joined",
        "heads",
        "Delta_score",
    ),
    Mistake(
        "the source's own error forgotten",
        mixing.MatrixMixing.backward,
        "(Delta_score, Delta_x)",
        "(Delta_score, 0 * Delta_x)",
        "full matrix function",
        "Delta_value",
    ),
    Mistake(
        "scores not masked going down",
        mixing.MatrixMixing.backward,
        "self.normalise.backward(Delta_rho, normalised, run)",
        "Delta_rho",
        "full matrix function",
        "Delta_score",
    ),
    Mistake(
        "q and k exchanged",
        scores.Product.backward,
        "(joined(Delta_q), joined(Delta_k))",
        "(joined(Delta_k), joined(Delta_q))",
        "low rank score",
        "Delta_end",
    ),
)
