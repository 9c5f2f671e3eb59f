"""Following a log while it grows."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import line_forms

from steptime.logs import attempts
from steptime.logs.training_log import Problem, Step
from steptime.runs.log_following import StepFollower


@settings(max_examples=25)
@given(st.integers(1, 500))
def test_every_step_comes_once_whatever_the_pieces(size):
    """Eight ranks print each step, and the log arrives in pieces as polls read it."""
    log = b"".join(
        line_forms.nemo2(step, prefix=f"{rank}: ").encode() for step in range(20) for rank in range(8)
    )
    follower = StepFollower()
    news = [item for at in range(0, len(log), size) for item in follower.feed(log[at : at + size])]
    assert [step.global_step for step in news if isinstance(step, Step)] == list(range(20))
    assert len(news) == 20


def test_a_restart_is_told_and_its_steps_come_again():
    follower = StepFollower()
    follower.feed(line_forms.nemo2_log(range(10)))
    news = follower.feed(b"".join(line_forms.nemo2(step, time="9.9").encode() for step in range(5, 8)))
    assert isinstance(news[0], Problem)
    assert news[0].kind == "duplicate_steps"
    assert [step.global_step for step in news[1:] if isinstance(step, Step)] == [5, 6, 7]


def test_a_loss_that_is_no_number_is_told_before_its_step():
    follower = StepFollower()
    news = follower.feed(
        b"".join(line_forms.nemo2(step, loss=loss).encode() for step, loss in ((0, "9.1"), (1, "nan")))
    )
    assert [event.kind if isinstance(event, Problem) else event.global_step for event in news] == [
        0,
        "nan_loss",
        1,
    ]


@pytest.mark.long
def test_memory_does_not_grow_with_the_log_or_its_ranks(monkeypatch):
    monkeypatch.setattr(attempts, "_MOST_STEPS", 2000)
    monkeypatch.setattr(attempts, "_KEPT_STEPS", 100)
    follower, kept_bytes = StepFollower(), []
    tracemalloc.start()
    try:
        for step in range(0, 3000, 100):
            news = follower.feed(line_forms.nemo2_log(range(step, step + 100)))
            assert [event.global_step for event in news if isinstance(event, Step)] == [
                *range(step, step + 100)
            ]
        kept_bytes.append(tracemalloc.get_traced_memory()[0])
        for rank in range(0, 2400, 100):
            lines = [
                line_forms.nemo2(3000, prefix=f"{number}: ").encode() for number in range(rank, rank + 100)
            ]
            news = follower.feed(b"".join(lines))
            assert len(news) == (rank == 0)
        kept_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(kept_bytes) < 1 << 20, "as many steps that are all kept take 2 MiB"
