"""Plans exactly at a budget and just beside it, and how sizes and hours are shown at each change of form."""

from types import SimpleNamespace

import pytest

from steptime.errors import UserError
from steptime.recipes import memory
from steptime.recipes.node_lists import expand_nodes, fold_nodes
from steptime.recipes.notation import format_bytes, format_hours
from steptime.recipes.sweep_planning import SweepPlan


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (1023, "0.999 KiB"), (1024, "1 KiB")),
        *((80 << 30, "80 GiB"), (999 << 30, "999 GiB"), (1000 << 30, "0.977 TiB"), (5 << 40, "5 TiB")),
        *((999 << 40, "999 TiB"), (1000 << 40, "1,000 TiB"), (123_456 << 40, "123,456 TiB")),
    ],
)
def test_a_size_has_three_digits(number, text):
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        *((0, "0.00"), (0.000012345, "0.000012"), (0.0012345, "0.0012"), (0.099, "0.099"), (0.1, "0.10")),
        *((0.999, "1.00"), (2.5, "2.50"), (1234.5, "1,234.50"), (2048 * 24.0, "49,152.00")),
    ],
)
def test_hours_have_two_digits_at_least(hours, text):
    assert format_hours(hours) == text


@pytest.mark.parametrize(
    ("limit", "asks"), [(None, False), (9.99, True), (10.0, False), (10.01, False), (0.0, True)]
)
def test_a_sweep_above_its_limit_needs_approval(limit, asks):
    plan = SimpleNamespace(approval_above_gpu_hours=limit, gpu_hours_max=10.0)
    assert SweepPlan.needs_approval.fget(plan) is asks  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("budget", "cells"), [(0.29, 2), (0.3, 3), (0.3 - 1e-7, 3), (0.31, 3), (0.09, 0), (9, 4)]
)
def test_a_trial_reserves_the_cells_that_its_budget_is_enough_for(budget, cells):
    of_trial = [SimpleNamespace(gpu_hours_max=0.1) for _ in range(4)]
    plan = SimpleNamespace(cells=of_trial, gpu_hours_max=budget)
    assert len(SweepPlan.reserving_cells.fget(plan)) == cells  # type: ignore[attr-defined]


@pytest.mark.parametrize(("states_gb", "fits"), [(79.9, True), (80.0, True), (80.1, False)])
def test_what_fills_a_gpu_exactly_fits(states_gb, fits, monkeypatch):
    estimate = SimpleNamespace(states_gb=states_gb, gpu_gb=80.0)
    monkeypatch.setattr(memory, "estimate_memory", lambda *_: estimate)
    run = SimpleNamespace(
        label="405b", recipe=SimpleNamespace(gpu_type="h100"), performance=SimpleNamespace(trainer=None)
    )
    if fits:
        memory.require_memory((run,))
    else:
        with pytest.raises(
            UserError, match=r"405b cannot fit: .* take about 80 GB of each h100, which has 80 GB"
        ):
            memory.require_memory((run,))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3]", ["n1", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a1,n[1-2,7]", ["a1", "n1", "n2", "n7"]),
        ("login", ["login"]),
        ("", []),
    ],
)
def test_node_lists_come_back_as_they_were(text, nodes):
    assert list(expand_nodes(text)) == nodes
    assert fold_nodes(reversed(nodes)) == text
