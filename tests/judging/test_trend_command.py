"""`steptime results trend` on half a year of runs shows what the page shows, in a terminal or as JSON."""

import csv
import json
import re
import shutil
import sqlite3
from contextlib import closing
from io import StringIO
from itertools import pairwise

import pytest
import stored
from called import refusal, steptime
from typer.testing import CliRunner

from steptime.cli import app, comparing
from steptime.judging.judgements import accept
from steptime.judging.missing_cells import MissingCell
from steptime.judging.record_changes import changes
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS
from steptime.judging.series import Series
from steptime.judging.trend import COLUMNS, since_sentence, trend, verdict_sentence
from steptime.measure.report import export_row
from steptime.store.run_queries import Store

pytestmark = pytest.mark.slow

SLOWER = "small-4-27"


def call(*arguments):
    return CliRunner().invoke(app, ["results", "trend", *arguments], catch_exceptions=False)


@pytest.fixture
def half_a_year(half_years, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])
    return Store(half_years[1])


@pytest.mark.usefixtures("half_a_year")
def test_filters_that_fit_several_series_list_them(capsys):
    assert steptime("results", "trend", "--size", "small") == 1

    *listed, sentence = capsys.readouterr().err.splitlines()
    assert (
        sentence
        == "steptime: 4 series fit --size: add filters, or name a run of one of them, as listed above."
    )
    jobs = [line.split()[0] for line in listed]
    assert len(jobs) == 4
    assert all(call(job).stdout.startswith("small·fp32·") for job in jobs)


def test_it_says_how_the_series_stands_and_draws_it(half_a_year):
    shown = call(SLOWER, "--wide")

    assert shown.exit_code == 0
    first, line, *_ = shown.stdout.splitlines()
    assert first.startswith("small·fp32·4 (llama3.1-25.04, weak, tp/pp/cp/dp 1/1/1/4, cpu of local): 0.84")
    assert " s, slower, confirmed, after 28 runs. Its level began with the run of " in first
    assert first.endswith("; changed then: OMP_NUM_THREADS 1 → 2.")
    assert re.fullmatch(r"0\.\d+ s [▁▂▃▄▅▆▇█]{28} 0\.\d+ s", line)
    assert line.split()[2][-3:] > line.split()[2][:3], "its end is higher than its beginning"
    for text in (
        "time, s",
        "change, %",
        "baseline, s",
        "usual from, s",
        "usual to, s",
        "detectable, %",
        " changed ",
        "OMP_NUM_THREADS 1 → 2",
        "confirmed",
    ):
        assert text in shown.stdout
    assert SLOWER not in shown.stdout
    assert SLOWER in call(SLOWER, "--full-names").stdout


def test_a_narrow_terminal_shows_the_latest_runs(half_a_year, monkeypatch):
    rows = trend(half_a_year, Series.from_row(half_a_year.run(SLOWER)))
    whole = comparing._line(rows).split()[2]

    monkeypatch.setattr(comparing, "terminal_width", lambda: 30)
    narrow = comparing._line(rows)

    assert len(narrow) == 30
    assert whole.endswith(narrow.split()[2])
    assert len(whole) > len(narrow.split()[2])


def test_a_run_is_usual_between_what_was_usual_then(half_a_year):
    rows = [row for row in trend(half_a_year, Series.from_row(half_a_year.run(SLOWER))) if row["low_s"]]

    beside = [row["job_name"] for row in rows if not row["low_s"] < row["run_s"] < row["high_s"]]

    assert beside == [row["job_name"] for row in rows if row["series_state"] != "unchanged"]
    assert SLOWER in beside


def test_programs_get_what_the_page_has(half_a_year):
    (series,) = {Series.from_row(half_a_year.run(SLOWER))}
    rows = [{column.name: row[column.name] for column in COLUMNS} for row in trend(half_a_year, series)]

    newest = [row["job_name"] for row in trend(half_a_year, series, limit=3)]
    assert newest == [row["job_name"] for row in rows[-3:]]
    whole = json.loads(call(SLOWER, "--format", "json").stdout)
    printed = call(SLOWER, "--format", "csv")

    assert (whole["schema_version"], whole["label"], whole["series"]) == (1, "small·fp32·4", series.key)
    assert whole["sentence"] == printed.stderr.strip()
    assert whole["runs"] == [export_row(row, COLUMNS) for row in rows]
    listed = json.loads(CliRunner().invoke(app, ["results", "--format", "json"]).stdout)["results"]
    own = [column.name for column in RUN_VERDICT_COLUMNS]
    judged = {row["job_name"]: [row[name] for name in own] for row in listed}
    assert [judged[row["job_name"]] for row in rows] == [
        [pytest.approx(row[name]) if isinstance(row[name], float) else row[name] for name in own]
        for row in rows
    ]
    listed = list(csv.DictReader(StringIO(printed.stdout)))
    assert list(listed[0]) == [column.name for column in COLUMNS]
    assert [float(row["run_s"]) for row in listed] == [row["run_s"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        (["--size", "small", "--gpus", "2"], "small·fp32·2"),
        (["last"], "tiny·fp32·2"),
        (["tiny-8-25"], "tiny·fp32·8"),
    ],
)
def test_a_series_is_named_by_filters_or_by_any_of_its_runs(half_a_year, arguments, label):
    assert json.loads(call(*arguments, "--format", "json").stdout)["label"] == label


def test_an_accepted_level_and_a_drift_are_told(half_a_year, tmp_path, monkeypatch):
    shutil.copy(half_a_year.url.removeprefix("sqlite:///"), tmp_path / "copy.db")
    copy = Store(f"sqlite:///{tmp_path / 'copy.db'}")
    monkeypatch.setenv("STEPTIME_STORE_URL", copy.url)
    first = accept(copy, SLOWER, note="NeMo 2.8 checks gradients", accepted_by="ada")

    shown = call(first, "--wide")

    assert "NeMo 2.8 checks gradients (ada)" in shown.stdout
    assert "insufficient history" in shown.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["small-4-2"], "'small-4-2' begins the names of 8 runs (small-4-20, small-4-21, small-4-22, …)"),
        (["smal-4-27"], "there is no run 'smal-4-27' in the metrics store: did you mean 'small-4-27'?"),
        (["profile-01"], "runs in mode profile are not judged, so there is no trend to show."),
        ([SLOWER, "--gpus", "2"], "--gpus and a run exclude each other: name one of them."),
        (["--mode", "profile"], "no valid run in a judged mode fits these filters"),
    ],
)
def test_what_has_no_trend_is_one_sentence(half_a_year, arguments, told, capsys):
    assert told in refusal(capsys, "results", "trend", *arguments)


def test_what_changed_is_what_the_records_say(make_result, tmp_path):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    usual, ring = {"NCCL_ALGO": "Tree"}, {"NCCL_ALGO": "Ring"}
    ran = [
        ("n1", usual),
        ("n2", usual),
        ("n2", usual),
        ("n3", ring),
        ("n3", ring),
        ("n1", usual),
        ("n2", ring),
    ]
    for number, (node, environment) in enumerate(ran):
        result = make_result(f"run-{number}", environment=environment, submitted_at=1.79e9 + number)
        record = json.loads(result.record) | {"nodes": [node]}
        stored.write(store, result.model_copy(update={"record": json.dumps(record)}))
    with closing(sqlite3.connect(tmp_path / "s.db")) as before, before:
        before.execute(  # as stored by a steptime without this column
            "UPDATE records SET setup_sha256 = NULL "
            "WHERE run_id IN (SELECT id FROM runs WHERE job_name IN ('run-1', 'run-6'))"
        )

    rows = trend(store, Series.from_row(store.run("run-0")))

    to_ring, to_tree = "NCCL_ALGO Tree → Ring", "NCCL_ALGO Ring → Tree"
    assert [(row["changes"], row["node_changes"]) for row in rows] == [
        *(("", ""), ("", "nodes n1 → n2"), ("", ""), (to_ring, "nodes n2 → n3")),
        *(("", ""), (to_tree, "nodes n3 → n1"), (to_ring, "nodes n1 → n2")),
    ]
    told = ["; ".join(filter(None, (row["changes"], row["node_changes"]))) for row in rows]
    names = [f"run-{number}" for number in range(len(ran))]
    records = store.records(names)
    assert told[1:] == [
        "; ".join(changes(records[before], records[after])) for before, after in pairwise(names)
    ]


NOON = 1_789_971_200.0
"""06:00 UTC on 2026-09-21: the same day in all time zones of the tests."""


@pytest.mark.parametrize(
    ("changed", "missing", "sentence"),
    [
        ({}, False, "12.74 s, slower, suspected, after 2 runs. Its level began with the run of 2026-09-21."),
        (
            {"perhaps_words": "a drift of 1.0 % a week"},
            False,
            "12.74 s, slower, suspected, after 2 runs. Its level began with the run of 2026-09-21. "
            "It may be a drift of 1.0 % a week instead.",
        ),
        (
            {"verdict": "unchanged", "series_state": "unchanged"},
            False,
            "12.74 s, unchanged, after 2 runs. It drifts slowly, by 5.0 % since its fastest level: "
            "advice, no verdict.",
        ),
        (
            {"verdict": "faster", "series_state": "confirmed", "drift_words": "drifts by 1.0 % a week"},
            False,
            "12.74 s, faster, confirmed, after 2 runs. It drifts by 1.0 % a week since the run of "
            "2026-09-21: "
            "no single change.",
        ),
        (
            {"verdict": "unchanged", "series_state": "unchanged", "level_s": None},
            True,
            "12.74 s, unchanged until 2026-09-21, after 2 runs; since then it failed: out of memory.",
        ),
        (None, True, "no run has a time to be judged by; it failed: out of memory."),
        (None, False, "no run has a time to be judged by."),
    ],
)
def test_each_way_a_series_stands(changed, missing, sentence):
    last = {
        **{"run_s": 12.74, "verdict": "slower", "series_state": "suspected", "drift_words": ""},
        "perhaps_words": "",
        **{"submitted_at": NOON, "since": NOON, "changes": "", "level_s": 10.5},
    }
    rows = [] if changed is None else [last | {"submitted_at": NOON - 1e6, "level_s": None}, last | changed]
    if rows and changed and "level_s" not in changed:
        rows[0]["level_s"] = 10.0
    failed = MissingCell(None, "out of memory", 1, "job", NOON) if missing else None  # type: ignore[arg-type]
    assert f"{verdict_sentence(rows, failed)} {since_sentence(rows)}".rstrip() == sentence
