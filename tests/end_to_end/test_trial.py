"""Trials in a real Airflow: from the command to their answer by themselves, and with parts of it killed."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from stand_ins.trainer_python import STAND_IN, STAND_IN_ON_SLURM

from end_to_end.driving import command_of, kill, processes_of, wait_until
from steptime.store.run_queries import Store
from steptime.store.run_records import parse_record

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1800)]

ENDS_WITHIN_S = 1500


def write(airflow, name, variants, **fields):
    """Write a trial of the stand-in trainer, whose variants differ in their environment."""
    content = {
        "name": name,
        "cluster": STAND_IN,
        "run": {"workload": "llama3.1", "gpus": 1},
        "variants": {variant: {"environment": given} for variant, given in variants.items()},
        "least_difference_percent": 3,
        "rounds_max": 5,
        "gpu_hours_max": 10,
        **fields,
    }
    folder = Path(airflow.config) / "trials"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def store_of(airflow):
    return Store(f"sqlite:///{airflow.home / 'store' / 'steptime.db'}")


def rows_of(airflow, trial):
    return store_of(airflow).results(trial=trial, include_rejected=True)


def start(airflow, name):
    return airflow.client.trigger("steptime_trial", {"trial": name}, patience_s=60)


def jobs_of(airflow, trial):
    """Return how many jobs each variant had in each round."""
    return Counter((row["variant"], row["repeat"]) for row in rows_of(airflow, trial))


def answer(airflow, trial):
    shown = airflow.steptime("trial", "show", trial, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def report_of(airflow, run):
    task = airflow.task(run, "report")
    assert task is not None
    return airflow.log_text(run, task)


@pytest.mark.exhaustive
def test_a_trial_runs_until_the_slow_variant_and_the_broken_one_have_left(airflow):
    broken = {"STAND_IN": "out_of_memory"}
    write(airflow, "race", {"default": {}, "slow": {"STAND_IN_PRINTED_S": "0.6"}, "broken": broken})
    started = airflow.steptime("trial", "run", "race")
    assert started.returncode == 0, started.stderr
    (run_id,) = (line.split()[-1] for line in started.stdout.splitlines() if line.startswith("run id:"))
    run = airflow.ended(airflow.client.dag_run("steptime_trial", run_id), ENDS_WITHIN_S)

    told = answer(airflow, "race")
    assert (told["ended"], told["reason"], told["best"]) == (True, "one left", "default"), told
    by_name = {row["variant"]: row for row in told["variants"]}
    assert by_name["slow"]["status"] == "slower"
    assert by_name["slow"]["difference_percent"] == pytest.approx(100 * (0.6 / 0.4846 - 1), abs=0.1)
    assert by_name["broken"]["status"] == "cannot run"
    assert "memory" in by_name["broken"]["cause"]
    assert run.state == "success"
    jobs = jobs_of(airflow, "race")
    assert jobs["broken", 1] == 1
    assert {variant for variant, _ in jobs} == {"default", "slow", "broken"}
    assert jobs == {
        (name, number): 1 for name in ("default", "slow") for number in range(1, told["rounds"] + 1)
    } | {("broken", 1): 1}
    assert told["rounds"] < 5
    assert told["answer"] in report_of(airflow, run)
    rows = [row for row in airflow.results() if row["trial"] == "race"]
    assert rows
    assert not any(row["for_judging"] for row in rows)


@pytest.mark.exhaustive
def test_a_trial_ends_when_one_variant_can_run_and_no_other(airflow):
    broken = {"STAND_IN": "out_of_memory"}
    write(airflow, "one-left", {"default": {}, "broken": broken}, rounds_max=2)
    run = airflow.ended(start(airflow, "one-left"), ENDS_WITHIN_S)

    told = answer(airflow, "one-left")
    assert run.state == "success"
    assert (told["ended"], told["reason"], told["best"]) == (True, "one left", "default")
    assert {row["variant"]: row["status"] for row in told["variants"]}["broken"] == "cannot run"
    assert jobs_of(airflow, "one-left") == {("default", 1): 1, ("broken", 1): 1}
    assert told["answer"] in report_of(airflow, run)


@pytest.mark.exhaustive
def test_two_equal_variants_end_as_within(airflow):
    write(airflow, "equal", {"a": {}, "b": {}})
    run = airflow.ended(start(airflow, "equal"), ENDS_WITHIN_S)
    told = answer(airflow, "equal")
    assert (run.state, told["reason"]) == ("success", "within"), told
    assert told["within_percent"] <= 3
    assert "`a` and `b` are within" in told["answer"] or "`b` and `a` are within" in told["answer"]


def test_cancelling_a_trial_ends_its_job_and_starts_no_other(airflow):
    endless = {"STAND_IN": "hang"}
    write(airflow, "stopped", {"a": endless, "b": endless})
    before = set(airflow.jobs())
    run = start(airflow, "stopped")
    wait_until("a job of the trial", lambda: set(airflow.jobs()) - before, 600)
    ended = airflow.steptime("trial", "cancel", run.dag_run_id)
    assert ended.returncode == 0, ended.stderr
    assert airflow.ended(run).state == "failed"
    (job,) = set(airflow.jobs()) - before
    assert wait_until("the end of the job", lambda: airflow.ended_job(job)).state == "cancelled"
    assert "the trial was stopped before" in report_of(airflow, run)


@pytest.mark.exhaustive
def test_with_triggerer_scheduler_and_worker_killed_each_variant_has_one_job_in_each_round(
    airflow,
):
    """The scheduler's death takes the workers with it."""
    slow = {"STAND_IN_STEP_S": "1"}
    write(airflow, "killed", {"a": slow, "b": slow}, rounds_max=2)
    before = set(airflow.jobs())
    run = start(airflow, "killed")
    wait_until("a job of the trial", lambda: set(airflow.jobs()) - before, 600)
    for part in ("airflow triggerer", "airflow scheduler"):
        processes = [process for process in processes_of(airflow.home) if part in command_of(process)]
        assert processes, f"no {part} runs"
        kill(processes)
    assert airflow.ended(run, ENDS_WITHIN_S).state == "success"
    once = {(name, number): 1 for name in ("a", "b") for number in (1, 2)}
    assert jobs_of(airflow, "killed") == once
    assert len(set(airflow.jobs()) - before) == len(once)
    assert answer(airflow, "killed")["reason"] in ("within", "rounds used up")


@pytest.mark.slurm
@pytest.mark.exhaustive
def test_on_slurm_the_variants_of_a_round_run_on_the_same_nodes(airflow, slurm):
    write(airflow, "on-slurm", {"a": {}, "b": {}}, cluster=STAND_IN_ON_SLURM, rounds_max=2)
    assert "one after the other on the same nodes" in airflow.steptime("trial", "plan", "on-slurm").stdout
    assert airflow.ended(start(airflow, "on-slurm"), ENDS_WITHIN_S).state == "success"
    rows = rows_of(airflow, "on-slurm")
    assert len(rows) == 4
    for number in (1, 2):
        first, second = sorted(
            (row for row in rows if row["repeat"] == number), key=lambda row: row["submitted_at"]
        )
        statuses = store_of(airflow).job_statuses([first["job_name"], second["job_name"]])
        nodes = statuses[first["job_name"]].nodes
        assert nodes
        assert statuses[second["job_name"]].nodes == nodes
        record = parse_record(store_of(airflow).record(second["job_name"])["content"])
        assert record is not None
        assert record.run.cluster_options["nodelist"] == ",".join(nodes)
        assert first["ended_at"] <= second["submitted_at"]
