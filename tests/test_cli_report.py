"""From a run folder to its report: the right numbers at the right places."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from handgrad.cli import main, reporting
from handgrad.cli.reference import counts, unigram_nats
from handgrad.cli.reporting import formula, look, metrics, sentence, write_run_report
from handgrad.data.corpus import open_corpus
from handgrad.inspect.data import ReportData
from handgrad.models.load import load

TEXT = "    x\n" + "the cat sat on the mat, and the dog sat on the log.\n" * 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text(TEXT)
    shape = ["--layers", "2", "--heads", "2", "--width", "12", "--context", "10", "--steps", "6"]
    out = folder / "a run"
    assert main.run(["train", str(folder / "text.txt"), "--out", str(out), "--tokenizer", "chars", *shape]) == 0
    return out


@pytest.fixture
def data(run: Path, monkeypatch: pytest.MonkeyPatch) -> ReportData:
    kept: list[ReportData] = []
    monkeypatch.setattr(reporting, "write_report", lambda data, path: kept.append(data))
    assert write_run_report(run) == run / "report.html"
    return kept[0]


def test_curves_are_those_of_the_metrics(run: Path, data: ReportData) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert list(data.train.steps) == [1, 2, 3, 4, 5, 6]
    assert list(data.train.loss_nats) == [r["loss_nats"] for r in records[1:]]
    assert list(data.learning_rate.loss_nats) == [r["lr"] for r in records[1:]]
    assert list(data.validation.steps) == [0, 6]
    assert data.validation.loss_nats[1] == records[-1]["val_loss_nats"]
    assert data.title == "a run"
    assert data.commands[0].startswith("handgrad generate '")
    assert data.commands[1].endswith("/a run' --resume --steps 12")


def test_losses_to_compare_with(run: Path, data: ReportData) -> None:
    training, validation = open_corpus(run / "data").split()
    V = load(run).config.vocabulary
    share = [(int((training == i).sum()) + 1) / (len(training) + V) for i in range(V)]
    by_hand = -sum(math.log(share[i]) for i in validation[1:].tolist()) / (len(validation) - 1)
    assert data.reference_losses == pytest.approx(
        {"every token equally likely": math.log(V), "token frequencies alone": by_hand}, rel=1e-12
    )


def test_frequencies_count_every_token_once() -> None:
    assert counts(np.array([2, 0, 2], np.uint8), 4).tolist() == [1, 0, 2, 0]
    # 2, 1 and 1 of 4: the validation's first token is not predicted
    assert unigram_nats(np.array([0]), np.array([1, 0, 2]), 3) == pytest.approx((math.log(2) + math.log(4)) / 2)
    many = np.zeros(reporting.SENTENCE_TOKENS, np.uint8)
    assert unigram_nats(many, many, 1) == 0.0


def test_facts_are_words(run: Path, data: ReportData) -> None:
    assert data.facts["Model"] == "2 layers, 2 heads, width 12, context 10"
    assert data.facts["Steps"] == "6 of 6, 120 tokens each"
    assert data.facts["Parameters"] == f"{load(run).params.layout.count:,}"
    assert data.facts["Tokens"].startswith(f"chars, vocabulary {len(set(TEXT))}, {len(TEXT):,} in all")
    assert data.facts["Learning rate"] == "0.001 down to 0.0001, warmup 0 steps"
    assert data.facts["Numbers"] == "float32 on cpu, seed 0"


def test_a_sentence_goes_through_the_model_and_back(run: Path, data: ReportData) -> None:
    model = load(run)
    ids = sentence(open_corpus(run / "data"), model)
    assert "".join(data.tokens) == model.tokenizer.decode(ids.tolist())
    assert len(ids) == 10
    assert not data.tokens[0].isspace()
    assert list(data.attention) == ["block 0", "block 1"]
    assert data.attention["block 1"].shape == (2, 10, 10)
    assert np.allclose(data.attention["block 1"].sum(-1), 1, atol=1e-6)
    assert [name for name, _ in data.error_sizes] == [
        "Delta_head", "Delta_norm", "blocks.Delta_1", "blocks.Delta_0", "Delta_embedding"
    ]  # fmt: skip


def test_error_sizes_and_norms_are_those_of_one_pass(run: Path, data: ReportData) -> None:
    model = load(run)
    ids = sentence(open_corpus(run / "data"), model)[None]
    loss = model.loss(ids)
    gradient = model.backward()
    assert loss > 0
    P = model(ids).softmax(-1)
    P[0, torch.arange(9), ids[0, 1:]] -= 1
    P[0, 9] = 0
    assert dict(data.error_sizes)["Delta_head"] == pytest.approx(float((P / 9).square().mean().sqrt()), rel=1e-5)
    rows = {row.name: row for row in data.parameters}
    assert list(rows) == list(model.params.layout.slots)
    for name in ("blocks.1.attention.query.w", "norm.gamma", "embedding.position.w_pos"):
        assert rows[name].norm == pytest.approx(float(model.params[name].norm()), rel=1e-5)
        assert rows[name].gradient_norm == pytest.approx(float(gradient[name].norm()), rel=1e-5)
        assert rows[name].shape == tuple(model.params[name].shape)
    assert rows["head.w_emb"].tied_to == "embedding.token.w_emb"
    assert rows["head.w_emb"].gradient_norm == rows["embedding.token.w_emb"].gradient_norm > 0


def test_gradients_have_their_formulas(data: ReportData) -> None:
    formulas = {row.name: row.formula for row in data.parameters}
    assert formulas["blocks.0.mlp.up.w"] == "aᵗ Δ"
    assert formulas["blocks.0.mlp.up.b"] == formulas["norm.beta"] == "1ᵗ Δ"
    assert formulas["norm.gamma"] == "1ᵗ(Δ ∘ x)"
    assert formulas["embedding.position.w_pos"] == "OHE(position)ᵗ Δ"
    assert formulas["embedding.token.w_emb"] == formulas["head.w_emb"] == "OHE(t)ᵗ Δ + Δ_logitsᵗ a"
    assert all(formulas.values())
    assert (formula("embedding.token.w_emb", False), formula("head.w_emb", False)) == ("OHE(t)ᵗ Δ", "Δ_logitsᵗ a")


def test_the_sample_goes_on_from_text_that_was_not_learned(run: Path, data: ReportData) -> None:
    assert data.prompt == "".join(data.tokens)[: reporting.PROMPT_TOKENS]
    assert data.sample.startswith(data.prompt)
    assert len(data.sample) == len(data.prompt) + reporting.SAMPLE_TOKENS


def test_slow_models_write_less(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "SAMPLE_S", 0.0)
    prompt, text = reporting.sample_of(run)
    assert len(text) == len(prompt) + 1


def test_a_run_without_its_tokens_still_has_a_report(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    shutil.rmtree(moved / "data")
    (moved / "report.html").unlink()
    page = write_run_report(moved).read_text(encoding="utf-8")
    assert "No attention map was recorded." in page
    assert "2 layers, 2 heads, width 12, context 10" in page


def test_lines_of_the_metrics_that_were_cut_short_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1, "loss_nats": 2.0}\n[]\n{"step": "x"}\n{"step": 2, "lo')
    assert list(metrics(tmp_path / "m")) == [{"step": 1, "loss_nats": 2.0}]


def test_one_token_is_no_sentence(run: Path) -> None:
    assert look(load(run), torch.tensor([1])).parameters == []
