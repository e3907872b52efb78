"""Generated tasks: what is scored is right, equal seeds give equal data, training never sees what is held out."""

from __future__ import annotations

import pytest
import torch

from handgrad.core.errors import ConfigError
from handgrad.lab.tasks import HELD_OUT, TRAIN, Patterns, Pocket, Recall, batch_of, longer, settings
from handgrad.lab.text import Text, characters

TASKS = (
    Recall(),
    Recall(3, 5, 7, 11),
    Recall(3, 5, 7, 0, 1, 1),
    Pocket(),
    Pocket(5, 3, 2),
    Patterns(),
    Text(length=16),
)


@pytest.mark.parametrize("task", TASKS, ids=lambda t: f"{t.name} {t.length}")
def test_shapes_ids_and_seeds(task):
    ids, targets = batch_of(task, 9, 3, TRAIN, 5)
    assert ids.shape == targets.shape
    assert ids.shape[1] == task.length
    assert ids.dtype == targets.dtype == torch.int64
    assert int(ids.min()) >= 0
    assert int(ids.max()) < task.vocabulary
    assert int(targets.max()) < task.vocabulary
    assert bool((targets >= 0).any(1).all())
    assert 0 < task.chance < 1
    same = batch_of(task, 9, 3, TRAIN, 5)
    assert torch.equal(ids, same[0])
    assert torch.equal(targets, same[1])
    if task.name != "patterns":
        for seed, stream, step in ((4, TRAIN, 5), (3, HELD_OUT, 5), (3, TRAIN, 6)):
            assert not torch.equal(ids, batch_of(task, 9, seed, stream, step)[0])


def test_every_answer_of_recall_is_the_value_told_with_its_key():
    task = Recall(8, 32, 32, distance=5)
    ids, targets = batch_of(task, 50, 0, TRAIN, 1)
    for row, aims in zip(ids.tolist(), targets.tolist(), strict=True):
        told = dict(zip(row[:16:2], row[1:16:2], strict=True))
        asked = [t for t, aim in enumerate(aims) if aim >= 0]
        assert len(told) == 8
        assert {row[t] for t in asked} == set(told)
        assert all(aims[t] == told[row[t]] == row[t + 1] for t in asked)
        assert asked == list(range(21, 37, 2))
        assert all(64 <= filler < 72 for filler in row[16:21])
    assert len({tuple(row[21::2]) for row in ids.tolist()}) > 45  # the order of questions is drawn


def test_a_pause_stands_between_a_key_and_its_answer():
    ids, targets = batch_of(Recall(3, 5, 7, pause=2), 20, 0, TRAIN, 1)
    assert ids.shape[1] == 18
    for row, aims in zip(ids.tolist(), targets.tolist(), strict=True):
        told = dict(zip(row[:6:2], row[1:6:2], strict=True))
        assert [t for t, aim in enumerate(aims) if aim >= 0] == [8, 12, 16]
        assert all(row[t - 1 : t + 1] == [12, 12] for t in (8, 12, 16))
        assert all(aims[t] == told[row[t - 2]] == row[t + 1] for t in (8, 12, 16))


def test_every_answer_about_the_pocket_is_the_amount_told_last():
    task = Pocket(4, 3, 2)
    changed = 0
    for row, aims in zip(*(x.tolist() for x in batch_of(task, 40, 0, TRAIN, 1)), strict=True):
        words, amounts, first = [task.words[i] for i in row], {}, {}
        for at, word in enumerate(words):
            if word in ("have", "now"):
                assert (word == "now") == (words[at + 2] in amounts)
                amounts[words[at + 2]] = words[at + 1]
                first.setdefault(words[at + 2], words[at + 1])
        asked = [t for t, aim in enumerate(aims) if aim >= 0]
        assert len(asked) == 4
        assert all(words[t - 1] == "many" for t in asked)
        assert all(task.words[aims[t]] == amounts[words[t]] == words[t + 1] for t in asked)
        changed += sum(amounts[thing] != first[thing] for thing in amounts)
    assert changed > 100  # of 120 that were told anew, a few by the same amount


def test_patterns_are_all_there_and_have_no_rule():
    ids, targets = Patterns(side=16).draw(0, torch.Generator())
    assert len({tuple(row) for row in ids.tolist()}) == 256
    answers = targets[:, 1].view(16, 16)
    assert targets[:, 0].eq(-1).all()
    best = answers.sort(1).values.mode(1).values  # an answer by the first token alone
    assert float((answers == best[:, None]).float().mean()) < 0.25
    assert torch.equal(targets, Patterns(side=16).draw(5, torch.Generator().manual_seed(9))[1])
    assert not torch.equal(targets, Patterns(side=16, table_seed=1).draw(0, torch.Generator())[1])


def test_text_holds_out_its_last_tenth():
    task, n = Text(length=32), len(characters())
    text = "".join(chr(i + 31) if i else "\x00" for i in characters().tolist())
    held = text[n * 9 // 10 :]
    for task, inside in ((Text(length=32), False), (Text(length=32, held_out=True), True)):
        ids, targets = batch_of(task, 20, 0, TRAIN, 1)
        assert torch.equal(ids[:, 1:], targets[:, :-1])
        windows = ["".join(chr(i + 31) if i else "\x00" for i in row) for row in ids.tolist()]
        assert all(window in text for window in windows)
        assert all(window in held for window in windows) or not inside


def test_other_sizes_of_a_task():
    assert longer(Recall(), pairs=16).length == 64
    assert settings(Recall(2, 4, 4))["pairs"] == 2
    with pytest.raises(ConfigError, match="changes what the ids mean"):
        longer(Recall(), n_keys=64)
    with pytest.raises(ConfigError, match="40 facts need as many different keys, and there are 32"):
        Recall(40)
    with pytest.raises(ConfigError, match="9 things with 0 updates"):
        Pocket(9, 0)
