"""What commands and pages say, kept in tests/golden for review; shows a wrong unit, sign, column or order.

`numbers` has all numbers and names of their JSON; `shown` has what people read, and the pages' sentences.

The runs are as large as real ones: 2,048 GPUs with 80 GiB. After an intended change, rewrite the files and
review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/cli/test_golden_numbers.py
"""

import json
import os
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
import stored
from kept import assert_kept
from stored import publish
from stored_trial import DAG_RUN, StoredTrial, run_rounds
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.base import JobState, JobStatus
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_since
from steptime.judging.incident_updates import update_incidents
from steptime.judging.series import Series
from steptime.logs.training_log import Network
from steptime.measure.record import make_record
from steptime.pages import answers
from steptime.pages.answers import SelectedRuns
from steptime.recipes.models import Parallelism, Window
from steptime.store.run_models import Check, Measurement, Verdict
from steptime.store.run_queries import Store
from steptime.store.run_records import EarlierAttempt

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).parents[1] / "golden" / "numbers"
LOGS = Path(__file__).parents[1] / "data" / "logs"
START = 1_790_000_000.0
CALLS = {
    "metrics": "metrics --workload llama3.1 --size 70b --dtype fp8 --gpu-type h100 --gpus 64 --step-time 9.5",
    "parse": f"parse {LOGS / 'log-nemo2_h100_fp8.out'}",
    "plan": "plan llama3.1 --size 70b --dtype fp8 --gpu-type h100 --gpus 64,2048 --checkpoint",
    "plan-named": "plan llama3.1-26.06 --gpu-type gb300 --gpus 256",
    "sweep-plan": "sweep plan night",
    "incidents": "incidents",
    "incident": "incidents show 1",
    "results": "results",
    "compare": "results compare --since 2026-09-01",
    "goodput": "results goodput --since 2026-01-01",
    "nodes": "results nodes pairs",
    "run": "results show last",
    "trend": "results trend",
    "trial": "trial show nccl-ring",
}
PAGES = {
    "page-comparison": lambda store: answers.comparison(store, compare_since(store, START)),
    "page-dag-run": lambda store: answers.select_results(
        store, SelectedRuns("steptime_llama3.1-25.04", "manual__2026-11-21", {}, {}), 3
    ),
    "page-differences": lambda store: answers.differences(store, store.run("job-7"), store.run("bad-7.5")),
    "page-incidents": lambda store: answers.incidents_since(store, START, bool),
    "page-node": lambda store: answers.node(store, "local", "node2"),
    "page-nodes": answers.nodes,
    "page-run": lambda store: answers.run(store, store.run("job-9"), bool),
    "page-series": answers.series,
    "page-sets": lambda store: answers.two_sets(store, "node=node0", "node=node1", None),
    "page-trend": lambda store: answers.series_trend(store, Series.from_row(store.run("job-9")), True, 4),
    "page-trial": lambda store: answers.trial(store, "/".join(DAG_RUN)),
    "page-trials": lambda store: answers.trials(store, 0),
}
SHOWN = {
    **CALLS,
    "accepted": "incidents accept 1 --note checked; results trend",
    "columns": "results columns",
    "failed": "parse log-failed.out",
    "launch": "recipes --workload nemotron-h-25.05 --launch --wide",
    "metrics-of-experts": "metrics --workload deepseek-v3-26.08 --size 671b --dtype bf16 --gpu-type gb300 "
    "--gpus 256 --step-time 9.5",
    "openmetrics": "results metrics",
    "plan-of-experts": "plan deepseek-v3-26.08 --dtype bf16 --gpu-type gb300 --gpus 256 --wide",
    "plan-on-cpus": "plan llama3.1 --checkpoint --repeats 2",
    "published": "recipes --workload nemotron4-340b-24.11 --published --wide",
    "recipes": "recipes --workload llama3.1-26.08 --wide",
    "release-diff": "recipes diff gpt-oss-26.02 gpt-oss-26.08; recipes diff qwen3-26.02 qwen3-26.08",
    "rejected": "results --state rejected --gpus 2048 --wide",
    "results": "results --wide",
    "sets": "results compare --a node=node0 --b node=node1 --wide; "
    "results compare --a until=2026-11-10 --b since=2026-11-10; "
    "results compare --a node=node0 --b node=node1 --by tokens",
    "silenced": "incidents silence 1 --until 14d --note known; incidents show 1; incidents; "
    "results compare --since 2026-09-01; "
    "incidents note 1 seen; incidents silence 1 --until now; incidents",
    "trial-plan": "trial plan example-micro-batch",
}
FIELDS = Measurement.model_fields.keys()
FAILED_LOG = """\
Training epoch 0, iteration 0/49 | global_batch_size: 128 | global_step: 0 | train_step_timing in s: 9.5
Training epoch 0, iteration 1/49 | global_batch_size: 128 | global_step: 1 | train_step_timing in s: 9.1
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 is full.
"""
NAME = re.compile(r"(?![0-9a-f]{8,}$)[a-z][\w·.-]*")
"""One word, but no hash."""
NOW = START + 10 * WEEK_S


@pytest.fixture(scope="module")
def filled(make_result, tmp_path_factory):
    """Publish a sweep's run each week on two of three nodes; the last two are 6 % slower. Reject two more."""
    path = tmp_path_factory.mktemp("golden") / "steptime.db"
    store = Store(f"sqlite:///{path}")
    levels = (12.0, 12.05, 11.97, 12.02, 11.99, 12.04, 12.01, 11.98, 12.74, 12.71)
    for week, level in enumerate(levels):
        submitted_at = START + week * WEEK_S
        made = make_result(submitted_at=submitted_at)
        ran = {
            "started_at": submitted_at + 90,
            "ended_at": submitted_at + 390,
            "nodes": (f"node{week % 3}", f"node{(week + 1) % 3}"),
        }
        replaced = {
            "status": made.status.model_copy(update=ran),
            "provenance": made.submitted.provenance.model_copy(update={"sweep": "pairs"}),
            "submitted_at": submitted_at,
        }
        publish(store, make_result(f"job-{week}", gpus=2048, step_times=[level] * 20, **replaced))
    refused = Verdict(checks=(Check(name="x", passed=False, message="It did not."),))
    for week in (2.5, 7.5):
        rejected = {"verdict": refused, "submitted_at": START + week * WEEK_S}
        publish(store, make_result(f"bad-{week}", gpus=2048, **rejected))
    run_rounds(StoredTrial(store, make_result), {"default": 12.0, "ring": 12.6, "broken": None}, 4)
    update_incidents(store, now=NOW)
    return path


@pytest.fixture(scope="module")
def whole(make_result, tmp_path_factory):
    """Store one run on GPUs that has every number, each number another one, and every fact."""
    path = tmp_path_factory.mktemp("whole") / "steptime.db"
    made = make_result("whole", gpus=2048, tensor=8, submitted_at=NOW - 86_400, step_times=[9.5] * 20)
    first = made.submitted
    numbers = {
        name: number + 2 if int in get_args(field.annotation) else round(1.5 + 1.25 * number, 2)
        for number, (name, field) in enumerate(type(made.measurement).model_fields.items())
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    }
    texts = {"window": Window(first=10, last=19), "steady_steps": "0:19", "peak_source": "a data sheet"}
    measurement = type(made.measurement).model_validate(
        made.measurement.model_dump() | numbers | {name: texts[name] for name in texts.keys() & FIELDS}
    )
    recipe = first.run.recipe.model_copy(
        update={
            "gpu_type": "h100",
            "dtype": "fp8",
            "parallelism": Parallelism(
                tensor=8, pipeline=4, context=2, data=32, virtual_pipeline=5, expert=16, expert_tensor=1
            ),
        }
    )
    staged = first.provenance.staged.model_copy(
        update={
            "image": "nvcr.io/nvidia/nemo:25.04.01",
            "image_digest": f"sha256:{'c' * 64}",
            "image_sha256": "d" * 64,
        }
    )
    provenance = first.provenance.model_copy(
        update={"staged": staged, "git_clean": False, "sweep": "night", "origin": "runs.tar.zst"}
    )
    submitted = first.model_copy(
        update={
            "run": first.run.model_copy(update={"recipe": recipe, "tuning": "tp8", "repeat": 3}),
            "provenance": provenance,
            "attempt": 2,
        }
    )
    log = made.log.model_copy(
        update={
            "network": Network(names=("IB",), nodes=256, rails=8, nvls=True, mnnvl=False),
            "node_check": {
                "nodes": [{"node": "n1", "faults": [], "matmul_tflops": 650.25}],
                "all_reduce": {"bus_gb_per_s": 360.5},
            },
            "started": made.log.started | {"launch": {"numa_bound_ranks": 2048, "vboost": True}},
        }
    )
    status = JobStatus(
        state=JobState.SUCCEEDED,
        exit_code=0,
        started_at=NOW - 86_400 + 3600,
        ended_at=NOW - 86_400 + 3600 + 400,
        nodes=("n1", "n2"),
    )
    lost = EarlierAttempt(
        job=first.job, status=JobStatus(state=JobState.FAILED, reason="n3 died", ended_at=NOW - 86_340)
    )
    record = make_record(submitted, status, log, (lost,))
    result = made.model_copy(
        update={
            "submitted": submitted,
            "status": status,
            "log": log,
            "measurement": measurement,
            "record": record,
        }
    )
    stored.write(Store(f"sqlite:///{path}"), result)
    return path


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("table", "results --full-names --wide"),
        ("facts", "results show whole"),
        ("facts-as-csv", "results show whole --format csv"),
        ("openmetrics", "results metrics"),
    ],
)
def test_every_number_and_fact_of_a_run_is_the_reviewed_one(name, command, whole, here, monkeypatch):
    shutil.copy(whole, here / "steptime.db")
    assert_kept(f"shown/whole-{name}.txt", shown_by(command, here, monkeypatch))


def test_every_column_of_a_run_is_the_reviewed_one(whole, here):
    shutil.copy(whole, here / "steptime.db")
    shown = CliRunner().invoke(app, ["results", "--format", "json"])
    hold_to_the_reviewed("whole", json.loads(shown.stdout))


@pytest.fixture(autouse=True)
def half_a_year(configure, filled, here, monkeypatch):
    """Copy the store to where the test's commands read it."""
    configure(str)
    shutil.copy(filled, here / "steptime.db")
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{here / 'steptime.db'}")


@pytest.mark.parametrize("name", CALLS)
def test_the_numbers_are_the_reviewed_ones(name):
    shown = CliRunner().invoke(app, [*CALLS[name].split(), "--format", "json"])
    hold_to_the_reviewed(name, json.loads(shown.stdout))


@pytest.mark.parametrize("name", PAGES)
def test_the_data_of_the_pages_is_the_reviewed_one(name, monkeypatch):
    with in_japan(monkeypatch):
        answer = json.loads(json.dumps(PAGES[name](Store())))
    hold_to_the_reviewed(name, answer)
    if texts := "".join(_texts(answer)):
        assert_kept(f"shown/{name}.txt", texts)


def hold_to_the_reviewed(name, answer):
    numbers = dict(_numbers(answer))
    kept = GOLDEN / f"{name}.json"
    if os.environ.get("STEPTIME_UPDATE_GOLDEN"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(numbers, indent=1) + "\n")
    assert numbers == pytest.approx(json.loads(kept.read_text()), rel=1e-9)


def _numbers(of):
    """Yield each number and each name below a JSON value with its path; of a table, by column."""
    for path, value in _leaves(of):
        if NAME.fullmatch(value) if isinstance(value, str) else isinstance(value, int | float):
            yield path, value


def _texts(of):
    """Yield the sentences below a JSON value, each with its path, but not how a repetition would differ."""
    for path, value in _leaves(of):
        if " " in str(value) and "\n" not in value and not path.startswith("repeat."):
            yield f"{path}: {value}\n"


def _leaves(of, path=""):
    """Yield what is no list, no object and no truth value, with its path; of a table, by column.

    When the test published a run is left out.
    """
    if isinstance(of, dict):
        if of.keys() >= {"columns", "rows"}:
            rows = [dict(zip(of["columns"], row, strict=True)) for row in of["rows"]]
            of = {**of, "columns": None, "rows": rows}
        for key, value in of.items():
            if key != "published_at":
                yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(of, list):
        for index, value in enumerate(of):
            yield from _leaves(value, f"{path}[{index}]")
    elif not isinstance(of, bool):
        yield path, of


@pytest.mark.parametrize("name", SHOWN)
def test_what_people_are_shown_is_the_reviewed_text(name, here, monkeypatch):
    (here / "log-failed.out").write_text(FAILED_LOG)
    monkeypatch.setenv("LOGNAME", "ada")
    assert_kept(
        f"shown/{name}.txt", "".join(shown_by(line, here, monkeypatch) for line in SHOWN[name].split("; "))
    )


@contextmanager
def in_japan(monkeypatch):
    """Make it NOW, in Japan."""
    with monkeypatch.context() as there:
        there.setattr(time, "time", lambda: NOW)
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def shown_by(command, here, monkeypatch):
    """Return what a command prints in Japan ten weeks after START, without what differs from day to day."""
    with in_japan(monkeypatch):
        shown = CliRunner().invoke(app, command.split())
    text = re.sub(r"\b(?=[0-9]*[a-f])[0-9a-f]{16,}\b", "<hash>", shown.output)
    return re.sub(
        r"^The repetition would differ: .*\n", "", text.replace(str(here), "<here>"), flags=re.MULTILINE
    )
