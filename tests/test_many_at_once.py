"""What the benchmarks of many runs at once come to, of what Airflow's database and their probes have."""

import sqlite3
from pathlib import Path

import pytest

from sweep_at_once import Role, Swept, figures_of, task_waits, write_config
from triggerer_waits import Waited


def test_a_tasks_way_to_its_start_is_taken_from_the_database(tmp_path: Path) -> None:
    database = tmp_path / "airflow.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE task_instance (scheduled_dttm, queued_dttm, start_date)")
        times = [
            ("2026-11-24 08:00:00.000000", "2026-11-24 08:00:01.500000", "2026-11-24 08:00:04.000000"),
            (None, "2026-11-24 08:00:00.000000", "2026-11-24 08:00:00.250000"),
            ("2026-11-24 08:00:00.000000", None, None),
        ]
        connection.executemany("INSERT INTO task_instance VALUES (?, ?, ?)", times)
    assert task_waits(f"sqlite:///{database}") == {
        "scheduled to queued": [1.5],
        "queued to begun": [2.5, 0.25],
    }


def test_calls_of_several_triggerers_add_up_and_the_worst_loop_counts() -> None:
    one = [{"at": 0.0, "commands": 3, "busy_ms": 8.0}, {"at": 60.0, "commands": 15, "busy_ms": 9.0}]
    other = [{"at": 10.0, "commands": 0, "busy_ms": 51.0}, {"at": 40.0, "commands": 6, "busy_ms": 2.0}]
    waited = Waited([1.0], [one, other], [], memory_mb=1.0, loop_cores=0.1, supervisor_cores=0.1)
    assert waited.per_minute("commands") == pytest.approx(12 + 12)
    assert waited.worst("busy_ms") == 51.0


def test_a_cell_without_a_valid_result_misses_the_goal() -> None:
    waits = {"scheduled to queued": [1.0, 2.0], "queued to begun": [1.0, 1.0]}
    swept = Swept(60.0, [3.0, 5.0], waits, cells=3, failed=1, calls=12)
    figures = {figure.name: figure for figure in figures_of(swept, {"scheduler": Role(30.0, 200.0)})}
    assert figures["3 cells: without a valid result"].misses_goal
    assert figures["3 cells: questions for the queue"].value == 12
    assert figures["3 cells: job's end to result, median"].value == 4
    assert figures["3 cells: scheduler, each cell"].value == 10
    assert figures["3 cells: scheduler, cores"].value == 0.5


@pytest.mark.parametrize("cells", [0, 4, 303])
def test_as_many_cells_as_a_sweep_can_have(cells: int, tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "polled.yaml").write_text("name: polled\n")
    (tmp_path / "sweeps").symlink_to(tmp_path)
    with pytest.raises(SystemExit, match=f"{cells} cells are no multiple of 3 up to 300"):
        write_config(tmp_path, tmp_path, cells)
