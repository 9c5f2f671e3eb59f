"""What searches for garbage look at in a process that has waits, as a triggerer."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

from steptime.airflow import garbage
from steptime.airflow.garbage import one_wait


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is exempt from garbage collection; as before the test after it."""
    callbacks, threshold = list(gc.callbacks), gc.get_threshold()
    monkeypatch.setattr(garbage, "_WAITS", Counter())
    gc.unfreeze()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.freeze()


def test_what_a_full_search_has_found_alive_is_not_looked_at_again() -> None:
    before = len(gc.get_objects())
    with one_wait():
        assert before > 100_000 > 100 * len(gc.get_objects()), "what Airflow has imported"
        kept = [[] for _ in range(5_000)]
        gc.collect(1)
        assert len(gc.get_objects()) > 5_000, "a smaller search leaves out nothing"
        gc.collect()
        assert len(gc.get_objects()) < 5_000 == len(kept)


def test_full_searches_begin_before_a_burst_of_waits_keeps_much() -> None:
    found: list[int] = []

    def count(phase: str, collection: dict[str, int]) -> None:
        if phase == "start" and collection["generation"] == 2:
            found.append(len(gc.get_objects()))

    with one_wait():
        gc.callbacks.insert(0, count)
        kept = [[] for _ in range(200_000)]
    assert len(found) > 5
    assert max(found) < 30_000 < len(kept)


class Cycle:
    """Something that only a search for garbage frees."""

    def __init__(self) -> None:
        self.itself = self


def left_by_a_wait() -> "weakref.ref[Cycle]":
    """A cycle that a wait leaves, once a search has found it alive."""
    with one_wait():
        cycle = Cycle()
        gc.collect()
    return weakref.ref(cycle)


@pytest.mark.long
def test_cycles_of_waits_that_have_ended_are_found_once_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_the_first = left_by_a_wait()
    monkeypatch.setattr(garbage, "_WAITS_WORTH_A_SEARCH", 3)
    gc.collect()
    assert of_the_first() is not None, "so few waits are not worth a search of everything"
    with one_wait(), one_wait():
        pass
    assert of_the_first() is None


@pytest.mark.long
def test_cycles_are_found_after_very_many_waits_though_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_wait():
        of_the_first = left_by_a_wait()
        monkeypatch.setattr(garbage, "_WAITS_WORTH_A_SEARCH", 1)
        monkeypatch.setattr(garbage, "_WAITS_WORTH_A_PAUSE", 3)
        with one_wait():
            pass
        assert of_the_first() is not None, "two have ended, and one waits"
        with one_wait():
            pass
        assert of_the_first() is None
