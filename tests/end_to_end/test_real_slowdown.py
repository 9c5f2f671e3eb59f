"""A sweep trains for weeks on a real Slurm, then an option slows it: the findings of the next Monday.

Nothing is made up: NeMo trains on the CPU, Airflow and Slurm are real. Only the weeks are not waited for: two
runs of a sweep of four repeats are as many runs as a weekly cell has after two months.
"""

import json
import os
import shutil
import statistics
import time

import pytest
import yaml

from end_to_end.conftest import share_environments
from end_to_end.driving import running_airflow
from steptime import settings
from steptime.mini_slurm import processes
from steptime.recipes.node_lists import expand_nodes
from steptime.service import connection_file

pytestmark = [
    *(pytest.mark.end_to_end, pytest.mark.trainer, pytest.mark.slurm, pytest.mark.exhaustive),
    pytest.mark.timeout(7200),
]

SWEEP = "tiny"
NOTIFIER = """
import json
from pathlib import Path
from airflow.sdk import BaseNotifier

class Told(BaseNotifier):
    def __init__(self, *, file, **kwargs):
        super().__init__(**kwargs)
        self.file = file

    def notify(self, context):
        with Path(self.file).open("a") as stream:
            stream.write(json.dumps({name: context[name] for name in ("event", "sentence")}) + "\\n")
"""
"""A module for Airflow's folder of plugins, with a notifier."""
USUAL = {"OMP_NUM_THREADS": "1"}
SLOWER = {**USUAL, "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}
"""An environment that computes without AVX on every processor."""
RUNS_AT_ONCE = 4
"""The jobs that Airflow submits at once; in Slurm they queue, as all but a few nodes are drained."""
HISTORY_NODE, OTHER_NODE = "node1", "node2"
LONGEST_S = 3600


@pytest.fixture
def news(tmp_path):
    """Return the file to which a notifier writes what it receives, a line of JSON for each event."""
    return tmp_path / "news.jsonl"


@pytest.fixture
def config(tmp_path, news):
    """Return the shipped config, with a limit on the mini Slurm's GPUs and a notifier."""
    shutil.copytree(settings.shipped("config"), config := tmp_path / "config")
    cluster = config / "clusters/mini-slurm.yaml"
    cluster.write_text(f"{cluster.read_text()}gpus: {RUNS_AT_ONCE}\n")
    told = {
        "events": ["incident opened", "incident confirmed", "sweep finished"],
        "notifier": "own_notifier.Told",
        "arguments": {"file": str(news)},
    }
    (config / "notifications.yaml").write_text(yaml.safe_dump({"notifications": [told]}))
    return config


@pytest.fixture
def weekly(config):
    """Return a function that writes the sweep."""

    def write(environment, *, repeats):
        cell = {"workload": "llama3.1", "gpus": 1, "max_steps": 30, "window": "10:29"}
        sweep = {
            **{"name": SWEEP, "cluster": "mini-slurm", "repeats": repeats, "gpu_hours_max": 20},
            "runs": [{**cell, "environment": environment}],
        }
        (config / f"sweeps/{SWEEP}.yaml").write_text(yaml.safe_dump(sweep))

    write(USUAL, repeats=4)
    return write


@pytest.fixture
def watched(tmp_path, config, weekly, mini_slurm):
    """Yield an Airflow of the test's own, with the mini Slurm's connection and the notifier."""
    home = tmp_path / "home"
    (home / "mini-slurm-work").mkdir(parents=True)
    (home / "mini-slurm-work/venvs").symlink_to(home / "venvs")
    share_environments(home)
    (home / "airflow/plugins").mkdir(parents=True)
    (home / "airflow/plugins/own_notifier.py").write_text(NOTIFIER)
    with (
        running_airflow(home, config, settings.shipped("dags")) as airflow,
        pytest.MonkeyPatch.context() as own,
    ):
        own.setenv("STEPTIME_HOME", str(home))
        own.setenv("STEPTIME_CONFIG_DIR", str(config))
        connection_file.keep(mini_slurm.login)
        yield airflow


@pytest.fixture
def alone(mini_slurm):
    """Yield a function that leaves the mini Slurm only these nodes; their jobs get one core to themselves.

    A real node is its job's alone. These are processes of one machine, beside Airflow and others: the same
    training took 0.6 to 3 s a step. Root can give them precedence on one core.
    """
    command = mini_slurm.command

    def leave(nodes):
        command("scontrol", "update", "nodename=node[1-8]", "state=drain", "reason=others wait")
        command("scontrol", "update", f"nodename={nodes}", "state=resume")

    for name, daemon in processes.daemons(mini_slurm.layout).items() if os.geteuid() == 0 else ():
        if name.startswith("slurmd-"):
            for thread in daemon.threads():
                os.sched_setaffinity(thread.id, {max(os.sched_getaffinity(0))})
                os.sched_setscheduler(thread.id, os.SCHED_RR, os.sched_param(1))
    yield leave
    leave("node[1-8]")


def test_a_slowed_sweep_is_suspected_confirmed_elsewhere_and_told(
    watched,
    weekly,
    alone,
    mini_slurm,
    news,
):
    began = time.time()
    alone(HISTORY_NODE)
    for _ in range(2):
        assert ran(watched).state == "success"
    usual = [row["steady_step_time_s"] for row in watched.results()]
    assert len(usual) >= 8

    alone(f"{HISTORY_NODE},{OTHER_NODE}")
    weekly(SLOWER, repeats=1)
    sweep = ran(watched)
    assert sweep.state == "success"

    rows = watched.results()
    slow = [row for row in rows if (row["dag_id"], row["dag_run_id"]) == (sweep.dag_id, sweep.dag_run_id)]
    first, *confirmations = sorted(slow, key=lambda row: row["submitted_at"])
    mean = statistics.fmean(usual)
    slowed = [f"{row['steady_step_time_s']:.4f} s on {row['nodes']}" for row in (first, *confirmations)]
    print(f"\n{len(usual)} usual runs: {mean:.4f} s a step, deviation {statistics.stdev(usual) / mean:.1%}")
    print(f"slowed: {', '.join(slowed)}; all in {time.time() - began:.0f} s")
    assert len(confirmations) == 2
    assert {row["nodes"] for row in confirmations}.isdisjoint({first["nodes"]})
    for row in confirmations:
        shown = watched.steptime("results", "show", row["job_name"], "--record")
        assert json.loads(shown.stdout)["run"]["slurm"]["exclude"] == first["nodes"]
        accounted = ["sacct", "-X", "-n", "-P", "--starttime=now-1days", "--format=NodeList"]
        nodes = mini_slurm.ssh(*accounted, f"--name={row['job_name']}").split()
        assert nodes == [row["nodes"]]

    compared = watched.steptime("results", "compare", "--sweep", SWEEP, "--format", "json")
    assert compared.returncode == 3, compared.stdout
    [cell] = json.loads(compared.stdout)["cells"]
    assert (cell["verdict"], cell["series_state"]) == ("slower", "confirmed")
    assert cell["suspected_on"] == first["nodes"]
    assert set(expand_nodes(cell["confirmation_on"])) == {row["nodes"] for row in confirmations}
    assert "MKL_CBWR none → COMPATIBLE" in cell["changes"]

    week = watched.answer("GET", f"/steptime/api/comparison?since={began}").json()
    print(week["sentence"], *week["remarks"], sep="\n")
    assert week["sentence"].startswith("1 cell: 1 slower, 0 faster, 0 unchanged; worst tiny·fp32·1 +")
    assert f"({cell['confirmation_on']}); changed then: " in week["remarks"][0]
    assert "confirmed on " in week["remarks"][0]

    lines = map(json.loads, news.read_text().splitlines())
    told = {one["event"]: one["sentence"] for one in lines}
    print(told)
    assert {"incident confirmed", "sweep finished"} <= told.keys()
    assert f"({cell['confirmation_on']}); changed then: " in told["incident confirmed"]


def ran(airflow):
    """Run the sweep to its end."""
    return airflow.ended(airflow.client.trigger("steptime_sweep", {"sweep": SWEEP}, patience_s=60), LONGEST_S)
