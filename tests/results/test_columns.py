"""The declaration of the columns: what follows from it, and what two of them say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.results.columns import BY_NAME, COLUMNS, documentation
from steptime.results.metrics import throughput
from steptime.results.models import Result
from steptime.results.report import written
from steptime.results.store import Store

MakeResult = Callable[..., Result]
DOCS = Path(__file__).parents[2] / "docs" / "results.md"


def test_the_documentation_has_every_column() -> None:
    assert documentation() in DOCS.read_text(), "paste what `python -m steptime.results.columns` prints"


def test_every_name_is_declared_once_with_its_unit() -> None:
    assert len(BY_NAME) == len(COLUMNS)
    for column in COLUMNS:
        assert column.description.endswith("."), column.name
        if column.unit in ("s", "%"):
            assert column.name.endswith({"s": "_s", "%": "_percent"}[column.unit]), column.name


def test_a_row_is_what_the_declaration_takes(tmp_path: Path, make_result: MakeResult) -> None:
    result = make_result()
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    store.publish(result)

    (row,) = store.results()

    assert list(row) == [column.name for column in COLUMNS]
    taken = {column.name: column.take(result) for column in COLUMNS if column.take}
    assert {name: row[name] for name in taken if name != "published_at"} == {
        name: value for name, value in taken.items() if name != "published_at"
    }


def test_gpu_hours_are_from_the_jobs_start_to_its_end(make_result: MakeResult) -> None:
    take = BY_NAME["gpu_hours"].take
    assert take is not None
    result = make_result(gpus=4)
    times = {"started_at": 1000.0, "ended_at": 4600.0}

    assert take(result.model_copy(update={"status": result.status.model_copy(update=times)})) == 4.0
    never_began = result.status.model_copy(update={"started_at": None})
    assert take(result.model_copy(update={"status": never_began})) is None


def test_a_published_step_time_stands_beside_the_measured_one() -> None:
    request = PlanRequest(workload="llama3.1", size="8b", gpu_type="h100", dtype="bf16", gpus="8")
    (recipe,) = [run.recipe for run in plan(request).runs]

    measured = throughput(recipe, 24.54)

    assert (measured.published_step_time_s, measured.step_time_over_published) == (12.27, 2.0)
    other_batch = recipe.model_copy(update={"global_batch_size": 256})
    assert throughput(other_batch, 24.54).published_step_time_s is None


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("step_time_mean_s", [12.27, 0.25], ["12.2700", "0.2500"]),
        ("step_time_mean_s", [1234.5, None, 100.0], ["1,234.5", "", "100.0"]),
        ("tokens_per_s", [1_360_683.4, 85_459.2], ["1,360,683", "85,459"]),
        ("step_time_over_published", [1.1, 0.98], ["1.100", "0.980"]),
        ("checkpoint_save_s", [None, None], ["", ""]),
        ("gpus", [1024], ["1,024"]),
        ("proxy", [True, False], ["proxy", ""]),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(
    name: str, values: list[float | None], expected: list[str]
) -> None:
    assert written(BY_NAME[name], [{name: value} for value in values]) == expected


def test_a_deviation_has_the_decimals_of_its_mean() -> None:
    rows = [{"step_time_mean_s": 12.27, "step_time_std_s": 0.0123}]

    assert written(BY_NAME["step_time_std_s"], rows) == ["0.01"]
