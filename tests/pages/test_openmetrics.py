"""The export for Prometheus, as Prometheus' own parser reads it, and the dashboard over it."""

import json
import re
import time
from pathlib import Path

import pytest
import stored
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as of_textfile_collector
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.comparison import compare_since
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import incidents
from steptime.pages.openmetrics import METRICS, openmetrics
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

DASHBOARD = Path(__file__).parents[2] / "docs" / "reference" / "grafana-dashboard.json"


def read(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


@pytest.mark.long
def test_each_cell_has_the_numbers_of_its_newest_run(tmp_path, make_result):
    store, now = Store(f"sqlite:///{tmp_path / 's.db'}"), time.time()
    for name, days, seconds in (("old", 3, 0.6), ("new", 2, 0.5)):
        at = now - 86_400 * days
        stored.publish(store, make_result(name, submitted_at=at, step_times=[seconds] * 20))
    bad = Verdict(checks=(Check(name="x", passed=False, message="It is bad."),))
    stored.publish(store, make_result("bad", submitted_at=now - 9, verdict=bad))
    months_ago = make_result("months ago", gpus=4, submitted_at=now - 86_400 * 60)
    stored.publish(store, months_ago)

    found = read(openmetrics(store, now))

    cell = {"cluster": "local", "workload": "llama3.1-25.04", "cell": "tiny·fp32·2", "gpus": "2"}
    labels = frozenset({**cell, "mode": "performance"}.items())
    assert found["steptime_step_time_seconds"] == {labels: 0.5}
    assert found["steptime_tokens_per_second"] == {labels: 4096}
    assert found["steptime_goodput_percent"][labels] == pytest.approx(100 * 10 / 38.5)
    assert {dict(key)["verdict"]: value for key, value in found["steptime_verdict"].items()} == {
        **{"slower": 0, "faster": 0, "unchanged": 0, "insufficient history": 1}
    }
    assert "steptime_change_percent" not in found
    assert set(found) <= {metric.name for metric in METRICS}


@pytest.mark.slow
def test_it_says_what_this_week_says(half_years):
    store, now = Store(half_years[1]), time.time()
    update_incidents(store)
    found = read(openmetrics(store, now))

    compared = compare_since(store, now - 31 * 86_400)
    said = {
        dict(key)["cell"]: dict(key)["verdict"] for key, value in found["steptime_verdict"].items() if value
    }
    assert said == {name: one.verdict for name, one in zip(compared.names, compared.findings, strict=True)}
    assert "slower" in said.values()
    assert sum(found["steptime_incidents"].values()) == len(incidents(store)) > 0
    assert sum(found["steptime_month_gpu_hours"].values()) > 0


def test_the_file_is_for_the_textfile_collector_too(tmp_path, make_result, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    stored.publish(Store(), make_result(submitted_at=time.time() - 9))
    file = tmp_path / "steptime.prom"
    done = CliRunner().invoke(app, ["results", "metrics", "-o", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    families = [*of_textfile_collector(file.read_text())]
    assert [family.name for family in families] == [metric.name for metric in METRICS]
    assert {family.type for family in families} == {"gauge"}
    assert sum(len(family.samples) for family in families) == 18
    assert CliRunner().invoke(app, ["results", "metrics"]).stdout.endswith("# EOF\n")


def test_hostile_names_end_no_label(tmp_path, make_result):
    store, now = Store(f"sqlite:///{tmp_path / 's.db'}"), time.time()
    hostile = 'a"} 1\nb\\'
    run = make_result().run.model_copy(update={"cluster": hostile})
    stored.publish(store, make_result(run=run, submitted_at=now - 9))
    found = read(openmetrics(store, now))
    assert {dict(key)["cluster"] for key in found["steptime_step_time_seconds"]} == {hostile}


def test_every_metric_of_the_dashboard_is_exported():
    dashboard = json.loads(DASHBOARD.read_text())
    asked = set(re.findall(r"steptime_\w+", json.dumps([dashboard["panels"], dashboard["templating"]])))
    assert asked == {metric.name for metric in METRICS}
