"""What is shown while a run trains: the time that is left."""

from __future__ import annotations

from handgrad.cli.progress import TimeLeft


def test_the_time_left_is_of_steps_and_validations_apart() -> None:
    left = TimeLeft(steps=25, validate_every=10, tokens_per_step=100, n_validation_tokens=600, now_s=5.0)
    left.took({"step": 0, "val_loss_nats": 3.0}, 45.0)  # 40 s, which no step has to answer for
    for step in range(1, 5):
        left.took({"step": step, "tokens_per_s": 50.0}, 45.0 + 2 * step)
        assert left.seconds(step) is None
    left.took({"step": 5, "tokens_per_s": 50.0}, 55.0)
    assert left.seconds(5) == 20 * 2 + 3 * 40  # validations at 10, 20 and 25
    left.took({"step": 10, "tokens_per_s": 50.0, "val_loss_nats": 2.0}, 77.0)  # 2 s of it were the step's
    assert left.seconds(10) == 15 * 2 + 2 * 30
    assert left.seconds(25) is None
    resumed = TimeLeft(steps=20, validate_every=10, tokens_per_step=100, n_validation_tokens=600, now_s=0.0)
    for step in range(11, 16):
        resumed.took({"step": step, "tokens_per_s": 50.0}, 2.0 * step)
    assert resumed.seconds(15) == 5 * 2 + 1 * 4  # not measured yet: a third of the work of a step, token by token
    resumed.validate_every = 0
    assert resumed.seconds(15) == 5 * 2
