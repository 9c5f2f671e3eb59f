"""Half a year of 60 cells: the command line and the report name the planted changes, and nothing else."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sixty_cells import (
    ACCEPTED,
    BELOW,
    DRIFT,
    NOISY,
    SEEDS,
    STEP,
    WEST_CHANGE,
    cells,
    named,
    planted,
)
from typer.testing import CliRunner

from steptime.cli import app
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_since
from steptime.store.run_queries import Store

pytestmark = pytest.mark.slow

MANY_SEEDS = range(40)


def week(url):
    """Return the comparison that *This week* shows for a store."""
    return compare_since(Store(url), time.time() - WEEK_S)


def by_cell(compared):
    found = dict(zip(compared.names, compared.findings, strict=True))
    assert found.keys() == cells().keys()
    return found


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in SEEDS[1:])]
)
def test_exactly_what_is_planted_is_named(sixty_cells, seed):
    stores = sixty_cells(seed)
    assert named(week(stores.unchanged).rows) == set()
    assert named(week(stores.planted).rows) == planted(stores)


def test_what_is_named_has_its_reason(sixty_cells):
    stores = sixty_cells(SEEDS[0])
    compared = week(stores.planted)
    found, rows = by_cell(compared), {row["cell"]: row for row in compared.rows}

    by_cause = {cause.name: cause for cause in compared.causes}
    assert {series["cluster"] for series in by_cause[WEST_CHANGE].cells} == {"west"}
    assert {series["cluster"] for series in by_cause[f"node {stores.bad_node}"].cells} == {"east"}
    assert (found[STEP].verdict, found[STEP].series_state.state) == ("slower", "confirmed")
    assert found[STEP].judgement.changes[0] == "NVTE_FUSED_ATTN 1 → 0"
    assert found[DRIFT].drift is not None
    assert {found[cell].verdict for cell in (ACCEPTED, NOISY)} == {"unchanged"}
    assert found[NOISY].series_state.against.minimum_detectable_change > 0.1
    below = {cell for cell, row in rows.items() if row["against_publication"] == "below"}
    assert {BELOW, ACCEPTED} <= below
    assert rows["70b·bf16·2048·checkpoint load"]["against_publication"] is None


def test_compare_as_a_process_and_the_report_name_the_same(sixty_cells, tmp_path, monkeypatch):
    stores = sixty_cells(SEEDS[0])
    monkeypatch.setenv("STEPTIME_STORE_URL", stores.planted)
    wanted = planted(stores)

    program = Path(sys.executable).with_name("steptime")
    compare = [program, "results", "compare", "--format", "json"]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    compared = json.loads(done.stdout)
    assert named(compared["cells"]) == wanted
    assert compared["took"].startswith("60 cells · ")

    CliRunner().invoke(app, ["report", "-o", str(tmp_path / "week.html")], catch_exceptions=False)
    text = (tmp_path / "week.html").read_text()
    assert f"<strong>{compared['sentence']}.</strong>" in text
    told = json.loads(text.partition('id="frozen">')[2].partition("</script>")[0])["answers"]
    shown = told["api/comparison"]
    assert named([dict(zip(shown["columns"], row, strict=True)) for row in shown["rows"]]) == wanted
    assert sum(address.startswith("api/trend/") for address in told) == 60


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_of_many_seeds_few_err(sixty_cells):
    wrong, missed, alarmed = [], [], []
    for seed in MANY_SEEDS:
        stores = sixty_cells(seed)
        found, wanted = named(week(stores.planted).rows), planted(stores)
        wrong += sorted(found - wanted)
        missed += sorted(wanted - found)
        alarmed += [seed] if named(week(stores.unchanged).rows) else []
    assert len(alarmed) <= len(MANY_SEEDS) / 8, alarmed
    assert len(missed) <= len(MANY_SEEDS) / 8, missed
    assert len(wrong) <= len(MANY_SEEDS) / 8, wrong
