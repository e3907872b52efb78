"""Small runs for the tests of training: a corpus, one whole run made once, and an observer that keeps everything."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

import handgrad as hg
from handgrad.data import Corpus, prepare
from handgrad.train.config import TrainConfig
from handgrad.train.loop import Result, train

TEXT = "the cat sat on the mat, and the dog sat on the cat. " * 12
CONFIG = TrainConfig(steps=20, batch_size=3, warmup=4, validate_every=8, save_every=6, lr=1e-2, lr_floor=1e-3)


class Seen:
    """An observer that keeps everything, and calls `at` before each step's record is out."""

    def __init__(self, at=lambda record: None) -> None:
        self.info, self.records, self.messages, self.results, self.at = {}, [], [], [], at

    def started(self, info) -> None:
        self.info = dict(info)

    def stepped(self, record) -> None:
        self.records.append(dict(record))
        self.at(record)

    def said(self, message: str) -> None:
        assert "\n" not in message
        self.messages.append(message)

    def finished(self, result: Result) -> None:
        self.results.append(result)


@cache
def a_folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def a_corpus() -> Corpus:
    (a_folder() / "text.txt").write_text(TEXT)
    return prepare([a_folder() / "text.txt"], "chars", a_folder() / "tokens")


@cache
def a_whole_run() -> tuple[Path, Seen, Result]:
    """The run that was never stopped: read it, do not write to it."""
    folder, seen = a_folder() / "whole", Seen()
    return folder, seen, train(folder, shape(a_corpus()), CONFIG, a_corpus(), observer=seen)


def shape(corpus: Corpus, **how) -> hg.GPT2Config:
    return replace(hg.GPT2Config(corpus.tokenizer.vocab_size, 8, 1, 2, 8, dropout=0.1, std=0.02), **how)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def lasting(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in r.items() if k not in ("tokens_per_s", "peak_rss_bytes")} for r in records]


def weights(folder: Path) -> torch.Tensor:
    return hg.load(folder).params.flat


def stop_after(n: int) -> Callable[[], bool]:
    calls = iter(range(1, 10**6))
    return lambda: next(calls) < n
