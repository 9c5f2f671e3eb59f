"""Half years of 60 cells: planted changes are found with cause and date, and hardly anything else."""

from collections import Counter

import pytest

from planted_changes import FAR_ENOUGH, PLANTED, false_reports, half_year, score


@pytest.mark.slow
def test_what_is_planted_is_found_with_its_cause_and_date():
    counts, wrong = Counter[tuple[str, str]](), list[str]()
    for seed in (101, 102, 103):
        found, others = score(half_year(seed, planted=True))
        counts += found
        wrong += others

    of = {
        what: sum(counts[one.name, what] for one in PLANTED) for what in ("cells", "found", "cause", "near")
    }
    assert of["found"] >= 0.6 * of["cells"]
    assert of["cause"] >= 0.9 * of["found"]
    assert of["near"] >= 0.9 * of["found"]
    for one in PLANTED:
        if one.step >= FAR_ENOUGH:
            assert counts[one.name, "found"] >= 0.6 * counts[one.name, "cells"], one.name
    assert counts["bad node, +6 %, last week", "found"] >= 2
    assert wrong == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_where_nothing_changes_hardly_anything_is_reported():
    counts = false_reports(101)

    assert counts["cell-weeks"] == 1200
    assert counts["newly confirmed slower"] <= 1
    assert counts["cell-weeks with a cause"] == 0
