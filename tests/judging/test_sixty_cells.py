"""Half a year of 60 cells: what is planted is named by page, command line and report, and nothing else."""

import json
import time
from pathlib import Path

import pytest
from sixty_cells import ACCEPTED, BAD_NODE, CELLS, DRIFT, NOISY, STEP, WEEK_S, Cell, sixty_cells
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.comparison import compare_since
from steptime.judging.findings import Comparison, Finding
from steptime.results.store import Store

__all__ = ["sixty_cells"]  # a fixture

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def found(url: str) -> tuple[Comparison, dict[Cell, Finding]]:
    """What *This week* says of a store, and of each cell."""
    compared = compare_since(Store(url), time.time() - WEEK_S)
    cells = {(one.series.cluster, one.series.size, one.series.gpus): one for one in compared.findings}
    assert cells.keys() == set(CELLS)
    return compared, cells


def test_exactly_what_is_planted_is_named(sixty_cells: tuple[str, str]) -> None:
    compared, cells = found(sixty_cells[1])

    by_cause = {cause.name: cause for cause in compared.causes}
    assert by_cause.keys() == {f"node {BAD_NODE}", "common-mode"}
    assert {series.cluster for series in by_cause["common-mode"].cells} == {"west"}
    assert "NCCL_ALGO none → Ring" in by_cause["common-mode"].sentence
    explained = {series for cause in compared.causes for series in cause.cells}
    told = {cell for cell, one in cells.items() if one.verdict in ("slower", "faster")}
    assert {cell for cell in told if cells[cell].series not in explained} == {STEP}
    assert (cells[STEP].verdict, cells[STEP].standing.state) == ("slower", "confirmed")
    assert cells[STEP].changes[0].startswith("OMP_NUM_THREADS")
    assert [cell for cell, one in cells.items() if one.drift] == [DRIFT]
    assert {cells[cell].verdict for cell in (ACCEPTED, NOISY, DRIFT)} == {"unchanged"}
    assert cells[NOISY].standing.against.minimum_detectable_change > 0.1
    assert "1 drifts slowly" in compared.sentence


def test_without_plants_none_is_named(sixty_cells: tuple[str, str]) -> None:
    compared, _ = found(sixty_cells[0])

    assert compared.sentence == "60 cells: 0 slower, 0 faster, 60 unchanged"
    assert (compared.causes, compared.remarks) == ((), [])


@pytest.mark.parametrize(("store", "exit_code"), [(0, 0), (1, 3)])
def test_command_line_and_report_say_the_same(
    sixty_cells: tuple[str, str], store: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", sixty_cells[store])
    compared, _ = found(sixty_cells[store])

    shown = CliRunner().invoke(app, ["results", "compare", "--format", "json"], catch_exceptions=False)
    assert shown.exit_code == exit_code
    said = json.loads(shown.stdout)
    assert (said["sentence"], said["remarks"]) == (compared.sentence, compared.remarks)
    CliRunner().invoke(app, ["report", "-o", str(tmp_path / "week.html")], catch_exceptions=False)
    assert compared.sentence in (tmp_path / "week.html").read_text()
