"""Results as DataFrames: `steptime.read_runs`, `read_steps`, `read_judgements`, and their page's examples."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import stored

import steptime
from steptime.durations import WEEK_S
from steptime.errors import UserError
from steptime.frames import JUDGEMENT_COLUMNS, STEP_COLUMNS
from steptime.store.columns import COLUMNS
from steptime.store.run_queries import Store

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "pandas.md"
FIRST = 1_790_000_000.0


@pytest.fixture
def url(tmp_path, make_result):
    """Return the address of a store with ten weekly runs of one cell, of which the last one is slower."""
    store = Store(f"sqlite:///{tmp_path / 'steptime.db'}")
    for week in range(10):
        times = [1.0 + 0.001 * week + (0.2 if week == 9 else 0.0)] * 20
        result = make_result(f"job-{week}", step_times=times, submitted_at=FIRST + week * WEEK_S)
        stored.publish(store, result)
    return store.url


def test_runs_have_documented_columns_and_dtypes(url):
    runs = steptime.read_runs(url)
    assert list(runs.columns[: len(COLUMNS)]) == [column.name for column in COLUMNS]
    assert list(runs["job_name"]) == [f"job-{week}" for week in reversed(range(10))]
    expected = {
        "job_name": "string",
        "gpus": "Int64",
        "step_time_mean_s": "float64",
        "for_judging": "boolean",
    }
    expected["submitted_at"] = "datetime64[ns, UTC]"
    assert {name: str(runs[name].dtype) for name in expected} == expected
    assert runs["submitted_at"].iloc[-1] == pd.Timestamp(FIRST, unit="s", tz="UTC")
    assert runs["mfu_percent"].isna().all()
    assert runs["verdict"].iloc[-1] == "insufficient history"
    assert set(runs["series_state"]) >= {"insufficient history", "suspected"}


def test_runs_are_selected_by_time_and_columns(url):
    begin = pd.Timestamp(FIRST + 7.5 * WEEK_S, unit="s")
    assert len(steptime.read_runs(url, since=begin)) == 2
    assert len(steptime.read_runs(url, since=str(begin), gpus=2)) == 2
    nothing = steptime.read_runs(url, gpus=4)
    assert len(nothing) == 0
    assert nothing.dtypes.equals(steptime.read_runs(url).dtypes)
    with pytest.raises(UserError, match="runs have no column 'gpu'"):
        steptime.read_runs(url, gpu=4)


def test_steps_come_in_the_order_of_their_runs(url):
    steps = steptime.read_steps(["job-9", "job-0", "nobody"], url)
    assert list(steps.columns) == [column.name for column in STEP_COLUMNS]
    assert list(steps["job_name"].unique()) == ["job-9", "job-0"]
    assert list(steps["global_step"]) == [*range(20)] * 2
    assert steps["step_time_s"].iloc[-1] == 1.0
    assert steptime.read_steps("job-0", url)["global_step"].dtype == "Int64"


def test_judgements_have_a_row_for_each_run(url):
    judged = steptime.read_judgements(url)
    assert list(judged.columns) == [column.name for column in JUDGEMENT_COLUMNS]
    assert set(judged["job_name"]) == {f"job-{week}" for week in range(10)}
    last = judged.set_index("job_name").loc["job-9"]
    assert (last["series_state"], last["direction"]) == ("suspected", "slower")
    assert last["ratio"] == pytest.approx(1.2, abs=0.01)


def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(UserError, match=r"there is no metrics store at .*none\.db"):
        steptime.read_runs(f"sqlite:///{path}")
    assert not path.exists()


@pytest.mark.long
def test_importing_steptime_imports_no_large_library():
    code = "import sys, steptime; print([name for name in ('pandas', 'sqlalchemy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_examples_of_the_page_run(url, monkeypatch, capsys):
    monkeypatch.setenv("STEPTIME_STORE_URL", url)
    names = {}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(example, names)  # noqa: S102 - the page's own code
    assert names["development"].iloc[-1, 0] == pytest.approx(20.9, abs=0.1)
    assert names["jitter"].tolist() == [1.0] * 10
    assert names["noticed"].notna().any()
    printed = capsys.readouterr().out
    assert "tiny·fp32·2" in printed
