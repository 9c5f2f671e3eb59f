"""Tries of `wait` that are lost because their workers die: however many there are, none ends the job."""

from .conftest import task_of


def test_a_wait_outlives_the_loss_of_very_many_workers():
    for group in ("performance", "checkpoint.save", "checkpoint.load"):
        assert task_of(f"{group}.wait").retries >= 100
