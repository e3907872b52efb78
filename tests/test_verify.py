"""`handgrad verify`: right models hold, and every kind of mistake is named at the signal where it begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_llama import CASES
from test_model import randomised

import handgrad as hg
from handgrad.check.mistakes import MISTAKES
from handgrad.check.plant import Mistake, planted
from handgrad.check.tolerance import FLOAT64
from handgrad.check.verify import by_hand, verify
from handgrad.check.verify_rows import Kept, Rounding, layer_of, off, ordered
from handgrad.cli import main, verifying
from handgrad.core.errors import ConfigError, NumericError, ShapeError

# Square matrices, so that a transposed factor is wrong in its values and not only in its shape.
SQUARE = hg.GPT2Config(vocabulary=12, context=9, n_layers=2, n_heads=3, d_model=12, d_mlp=12)
TOKENS = torch.randint(0, 12, (2, 7), generator=torch.Generator().manual_seed(0))


def the(rule: str, what: str) -> Mistake:
    (mistake,) = (m for m in MISTAKES if (m.rule, m.what) == (rule, what))
    return mistake


@pytest.mark.parametrize(
    "config", [SQUARE, replace(SQUARE, bias=False, tied=False, activation="relu"), *CASES.values()], ids=range(9)
)
def test_a_right_model_holds_in_every_comparison(config: object) -> None:
    pytest.importorskip("transformers")
    found = verify(randomised(config), TOKENS % 11, draws=4)
    assert found.ok, found.first_wrong
    types = [f"{name} {form}" for name in ("float32", "bfloat16") for form in ("explicit", "fused")]
    assert set(found.comparisons) == {"float64", "fused", *types, "transformers"}
    assert found.left_out == ()
    assert {row.budget for row in found.rows if row.comparison in ("float64", "fused")} == {FLOAT64}
    judged = {row.signal for row in found.rows if row.comparison == "float64"}
    model = hg.build(config)
    assert set(model.params) <= judged
    assert {"Delta_head", "Delta_norm", "blocks.1.attention.Delta_raw", "blocks.0.Delta_norm_1"} <= judged
    by_them = {row.signal for row in found.rows if row.comparison == "transformers"}
    assert by_them >= {*model.params, "blocks.0", "blocks.1", "norm", "head", "loss", "blocks.Delta_0", "Delta_head"}


@pytest.mark.parametrize(
    ("rule", "what", "where"),
    [
        ("linear", "w not transposed going down", "blocks.1.mlp.Delta_activation"),
        ("linear", "factors of dw swapped", "blocks.1.mlp.down.w"),
        ("linear", "db is a mean", "blocks.1.mlp.down.b"),
        ("gelu", "gate's slope dropped", "blocks.1.mlp.Delta_up"),
        ("layernorm", "mean term dropped", "Delta_blocks"),
        ("layernorm", "dγ from D", "norm.gamma"),
        ("attend", "row sums forgotten", "blocks.1.attention.Delta_causal"),
        ("attend", "Δ_raw not transposed", "blocks.1.attention.Delta_k"),
        ("embed", "half the Delta", "embedding.token.w_emb"),
        ("unembed", "the head adds nothing to the tied slot", "embedding.token.w_emb"),
        ("crossentropy", "targets not subtracted", "Delta_head"),
        ("combine", "skip forgotten", "blocks.1.Delta_h"),
        ("combine", "a branch overwrites another", "blocks.1.Delta_norm_1"),
        ("combine", "a share for each branch", "embedding.Delta_token"),
    ],
)
def test_a_mistake_in_backward_is_named_where_it_begins(rule: str, what: str, where: str) -> None:
    with planted(the(rule, what)):
        found = verify(randomised(SQUARE), TOKENS, ["float64"], peer=False)
    assert found.first_wrong is not None
    assert (found.first_wrong.signal, found.first_wrong.comparison) == (where, "float64")


@pytest.mark.parametrize(
    ("rule", "what", "where", "comparison"),
    [
        ("linear", "bias left out", "blocks.0", "transformers"),
        ("embed", "the next row looked up", "blocks.0", "transformers"),
        ("layernorm", "epsilon outside the root", "blocks.0", "transformers"),
        ("combine", "branch without skip", "blocks.0", "transformers"),
        ("multihead", "heads joined unturned", "blocks.0", "transformers"),
        ("attend", "the mask upside down", "blocks.0.attention.out", "fused"),
        ("attend_tiled", "√d forgotten in one of two places", "blocks.1.attention.Delta_k", "fused"),
        ("headloss", "n forgotten", "loss", "fused"),
    ],
)
def test_a_mistake_in_forward_or_in_one_form_is_seen_by_another_formula(
    rule: str, what: str, where: str, comparison: str
) -> None:
    pytest.importorskip("transformers")
    with planted(the(rule, what)):
        found = verify(randomised(SQUARE), TOKENS, ["float64"])
    assert found.first_wrong is not None
    assert (found.first_wrong.signal, found.first_wrong.comparison) == (where, comparison)


@pytest.mark.parametrize("name", ["window (Mistral)", "offsets (Qwen2)"])
def test_rotary_pairs_turned_the_wrong_way_are_seen_in_a_llama(name: str) -> None:
    found = [m for m in MISTAKES if m.rule == "rope"]
    assert found
    seen = 0
    for mistake in found:
        with planted(mistake):
            seen += not verify(randomised(CASES[name]), TOKENS % 11, ["float64"]).ok
    assert seen >= 2, [m.what for m in found]


def test_half_precision_statistics_are_seen_beside_the_error_of_torch() -> None:
    """A forward pass that is right and rounds where it should not: only the types tell."""
    exact = Kept({"norm": torch.tensor([1.0, 2.0]).double()}, {}, {"w": torch.ones(2).double()})
    for size, ok in ((1.9, True), (2.1, False)):
        sums = Rounding("bfloat16 explicit", 0.0, 2.0)
        for sign in (1, -1, 1):
            torchs, ours = ({k: x * (1 + sign * e) for k, x in exact.forward.items()} for e in (1e-3, size * 1e-3))
            sums.add(Kept(ours, {}, exact.gradients), exact, Kept(torchs, {}, exact.gradients))
        assert len(sums.sums) == 2
        rows = {row.signal: row for row in sums.rows()}
        row = rows["activations of norm"]
        assert (row.ok, rows["gradients of w"].error) == (ok, 0.0)
        assert row.error == pytest.approx(size * 1e-3)
        assert row.torchs == pytest.approx(1e-3)


def test_a_rounding_type_is_judged_by_the_parameters_it_can_hold() -> None:
    """Rounding the parameters to bfloat16 is not an error of the pass; a pass in a smaller type than asked for is."""
    model = randomised(SQUARE)
    rows = verify(model, TOKENS, ["bfloat16"], peer=False, draws=2).rows
    assert all(row.ok for row in rows)
    assert max(row.error for row in rows if row.first) < 0.05
    exact, rounded = (by_hand(model, model.params.flat.to(t), TOKENS, "explicit") for t in (torch.float64, torch.half))
    assert not ordered(rounded.against(exact, "float32", 1e-6), exact, ()).ok


def test_a_few_numbers_are_judged_with_the_layer_before_them() -> None:
    many, one = torch.ones(100).double(), torch.ones(()).double()
    exact = Kept({"norm": many, "loss": one}, {}, {})
    sums = Rounding("float32 fused", 0.0, 2.0)
    sums.add(Kept({"norm": many, "loss": one + 1e-3}, {}, {}), exact, Kept({"norm": many + 1e-3, "loss": one}, {}, {}))
    (row,) = sums.rows()
    assert (row.signal, row.ok) == ("activations of norm", True)
    assert row.error == pytest.approx(1e-3 / 101**0.5)
    sums.add(Kept({"norm": many, "loss": one + 0.1}, {}, {}), exact, exact)
    assert not next(sums.rows()).ok


def test_what_must_vanish_is_held_against_the_whole() -> None:
    tiny, one = torch.tensor([1e-17]), torch.tensor([1.0])
    assert off(tiny, torch.zeros(1), whole=2.0) == (pytest.approx(1e-17), 2.0, "must vanish")
    assert off(one, torch.zeros(1), whole=0.0) == (1.0, 0.0, "must be 0")
    assert off(one, torch.zeros(2), whole=0.0)[0] == float("inf")
    assert off(one * float("nan"), one, whole=1.0) == (float("inf"), 1.0, "not finite")
    masked = torch.tensor([float("-inf"), 3.0])
    assert off(masked, masked, whole=0.0) == (0.0, 3.0, "")
    assert off(torch.tensor([0.0, 3.0]), masked, whole=0.0)[0] == float("inf")
    key = next(
        r for r in verify(randomised(SQUARE), TOKENS, ["float64"], False).rows if r.signal.endswith("0.attention.key.b")
    )
    assert (key.ok, key.note) == (True, "must vanish")
    assert layer_of("blocks.1.mlp.up.w") == "blocks.1"


def test_what_cannot_be_verified_is_refused() -> None:
    model = randomised(SQUARE)
    with pytest.raises(ConfigError, match="dtype 'float16' cannot be verified; known: float64, float32, bfloat16"):
        verify(model, TOKENS, ["float16"])
    broken = randomised(SQUARE)
    broken.params["blocks.1.mlp.up.w"][0, 0] = torch.nan
    with pytest.raises(NumericError, match=r"numbers are not finite: the parameter blocks\.1\.mlp\.up\.w is not\."):
        verify(broken, TOKENS)
    with pytest.raises(ShapeError, match="at least 2 tokens"):
        verify(model, TOKENS[:, :1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat.\n" * 60, encoding="utf-8")
    shape = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "12", "--steps", "5"]
    assert main.run(["train", str(folder / "text.txt"), "--out", str(folder / "run"), *shape]) == 0
    return folder / "run"


def test_the_command_says_what_holds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", str(run), "--dtype", "float64", "--no-transformers", "--text"]
    assert main.run([*arguments, "the cat"]) == 0
    shown = capsys.readouterr()
    assert "7 tokens of the text" in shown.out
    assert shown.out.splitlines()[-1].startswith("all ")
    assert "at most 1e-12 of the signal's norm" in shown.out
    assert "bfloat16" not in shown.out
    assert main.run([*arguments, "the cat sat on the mat", "--all"]) == 0
    every = capsys.readouterr()
    assert every.err == "--text is cut to its first 12 of 22 tokens\n"
    assert "blocks.0.attention.Delta_causal" in every.out
    assert len(every.out.splitlines()) > 2 * len(shown.out.splitlines())


def test_the_command_names_the_first_wrong_signal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted(the("attend", "row sums forgotten")):
        assert main.run(["verify", str(run), "--json", "--draws", "1", "--no-transformers"]) == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last = records[-1]
    assert last["ok"] is False
    assert last["first_wrong"]["signal"] == "blocks.0.attention.Delta_causal"
    assert len(records) - 1 == last["rows"]
    with planted(the("attend", "row sums forgotten")):
        assert main.run(["verify", str(run), "--dtype", "float64", "--no-transformers"]) == 1
    assert "First in the order of computation: blocks.0.attention.Delta_causal (float64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "float8"], "--dtype is 'float8', and must be one of float64, float32, bfloat16"),
        (["--draws", "0"], "--draws is 0, and must be at least 1"),
        (["--text", ""], "--text is empty"),
        (["--text", "a"], "--text has 1 token, and at least 2 are needed"),
    ],
)
def test_wrong_requests_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main.run(["verify", str(run), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_too_little_memory_is_refused_before_any_pass(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "free_bytes", lambda: 1e6)
    assert main.run(["verify", str(run)]) == 2
    assert "GB are free; a shorter --text needs less" in capsys.readouterr().err


def test_a_library_that_is_not_there_is_said(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("handgrad.check.verify_peer.find_spec", lambda name: None)
    assert main.run(["verify", str(run), "--dtype", "float64"]) == 0
    assert "transformers is not installed, so nothing was compared with it" in capsys.readouterr().out
