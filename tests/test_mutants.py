"""What `make mutants` changes, and that its list of changes by hand still fits the code."""

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mutants import (
    LISTS,
    Warm,
    _in_copy,
    _signal,
    changed_functions,
    compiles,
    functions_by_code,
    kept_mutants,
)
from mutations import mutants
from short_cuts import NO_SHORT_CUTS

CHANGES = {
    "a = b < c": ["a = (b <= c)"],
    "a = b < c <= d": ["a = (b < c < d)", "a = (b <= c <= d)"],
    "a = b and not c": ["a = (b or not c)", "a = (not c)", "a = (b)", "a = b and (c)"],
    "a = b + c": ["a = (b - c)"],
    "a = b + 'text'": [],
    "a = f'{b + c}'": [],
    "__all__ = ['a', 'b']": [],
    "if TYPE_CHECKING:\n    from a import b": [],
    "a = 7": ["a = 8"],
    "a = True": ["a = False"],
    "a: int | str = 0": ["a: int | str = 1"],
    "a = f(b, c=d)": ["a = (f(b))"],
    "a = f(description=d)": [],
    "a = f(examples=[1, 2])": [],
    "a = sorted(b)": ["a = (sorted(b, reverse=True))"],
    "a = min(b)": ["a = (max(b))"],
    "a = {b, c}": ["a = ({b})", "a = ({c})"],
    "a = (b, c)": [],
    "a = b[c:d]": ["a = b[c:]"],
    "f()": ["pass"],
    "a.b = c": ["pass"],
    "def f():\n    if a:\n        return b\n    return c": [
        "def f():\n    if a:\n        pass\n    return c",
        "def f():\n    if (not (a)):\n        return b\n    return c",
    ],
    "f(\n    a,\n    b=c,\n)\nd": ["(f(a))\n\n\n\nd", "pass\n\n\n\nd"],
    "ü = 'ü', 1": ["ü = 'ü', 2"],
}


def test_each_change_stands_alone_and_keeps_the_later_lines() -> None:
    for source, changed in CHANGES.items():
        found = mutants("module.py", source + "\n")
        assert sorted(m.mutated(source + "\n") for m in found) == sorted(text + "\n" for text in changed), (
            source
        )


def test_a_change_is_shown_as_a_diff() -> None:
    (mutant,) = mutants("module.py", "x = f(\n    a < b\n)\n")
    assert mutant.diff("x = f(\n    a < b\n)\n").splitlines()[2:] == [
        "@@ -2 +2 @@",
        "-    a < b",
        "+    (a <= b)",
    ]


def test_a_change_around_a_function_is_none_of_the_function() -> None:
    """In a fork its code would be exchanged for the same at another place, and the change never be made."""
    source = "a = f(\n    b=1,\n    c=lambda x: x + 1,\n)\n"
    changed = {
        m.mutated(source): changed_functions("module.py", source, m.mutated(source))
        for m in mutants("module.py", source)
    }
    assert changed.pop("a = f(\n    b=1,\n    c=lambda x: (x - 1),\n)\n") != (None, None)
    assert changed.pop("a = f(\n    b=1,\n    c=lambda x: x + 2,\n)\n") != (None, None)
    assert set(changed) > {"a = (f(c=lambda x: x + 1))\n\n\n\n"}
    assert set(changed.values()) == {(None, None)}


def test_the_changes_by_hand_fit_the_code_and_are_python() -> None:
    lists = yaml.safe_load(LISTS.read_text(encoding="utf-8"))
    by_hand = kept_mutants(lists["by_hand"])
    assert len(by_hand) == len(lists["by_hand"])
    assert all(map(compiles, by_hand))


@pytest.mark.long
def test_functions_are_found_after_the_collection_has_frozen_them() -> None:
    """Else no change is made in any fork, and each costs a process of its own."""
    names: dict[str, Callable[[], Any]] = {}
    exec("def function(): return 'as it was'", names)  # noqa: S102 - its code is no constant of this module's
    gc.freeze()
    try:
        assert functions_by_code()[0][names["function"].__code__] == [names["function"]]
    finally:
        gc.freeze()


@pytest.mark.slow
def test_a_loop_that_no_alarm_interrupts_ends_by_its_cpu_time(tmp_path: Path) -> None:
    """As one within SQLite, while pytest-timeout has the alarm."""
    child = os.fork()
    if not child:
        warm = Warm.__new__(Warm)
        warm.work = tmp_path
        warm._begin(0, 1, lambda: None)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        while True:
            pass
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert _signal(128 - code) == "the time limit"


def test_a_changed_function_is_called_by_all_tests_that_need_it(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        _in_copy(tmp_path, tmp_path / "output")
        os._exit(NO_SHORT_CUTS not in os.environ)
    assert os.waitpid(child, 0)[1] == 0
