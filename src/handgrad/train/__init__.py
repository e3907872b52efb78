"""Training: the step, the loop, checkpoints, and the files of a run."""

from handgrad.train.config import RunFile, TrainConfig, read_toml, write_toml
from handgrad.train.evaluate import evaluate
from handgrad.train.loop import Observer, Result, resume, train
from handgrad.train.schedule import lr_at
from handgrad.train.step import step_on

__all__ = [
    "Observer",
    "Result",
    "RunFile",
    "TrainConfig",
    "evaluate",
    "lr_at",
    "read_toml",
    "resume",
    "step_on",
    "train",
    "write_toml",
]
