"""Where the time of a DAG run went, of tasks and jobs that are made up."""

import pytest

from waterfall import Job, Task, bars, critical_path, figures, sums

JOB = Job(submitted=2.0, started=3.0, ended=18.0, imports_s=8.0, steps_s=4.0)
TASKS = [Task("submit", 0, "submit", 0.0, 2.0), Task("wait", 0, "wait", 2.5, 20.0, JOB)]
UPSTREAM = {"submit": set[str](), "wait": {"submit"}}


def test_imports_and_steps_are_the_trainings_own_and_the_rest_is_pipeline() -> None:
    found = {one.name: one for one in figures(sums(critical_path(TASKS, UPSTREAM), [JOB]), runs=1)}

    assert {name: one.value for name, one in found.items()} == pytest.approx(
        {
            "steptime's tasks": 2.0,
            "Airflow, between tasks": 0.5,
            "jobs: queued, and none of them runs": 0.5,
            "jobs: start, set-up, checkpoints": 3.0,
            "jobs: imports of NeMo": 8.0,
            "jobs: training steps": 4.0,
            "from a job's end to that of the task that waits": 2.0,
            "from the first task's start to the last one's end": 20.0,
            "pipeline, each run": 8.0,
        }
    )
    assert not found["pipeline, each run"].misses_goal


def test_the_training_of_another_run_while_a_job_is_queued_is_no_pipeline() -> None:
    second = Job(submitted=2.0, started=19.0, ended=29.0, imports_s=7.0, steps_s=1.0)
    tasks = [TASKS[0], TASKS[1], Task("wait", 1, "wait", 2.5, 30.0, second)]

    spent = sums(critical_path(tasks, UPSTREAM), [second, JOB])

    assert spent["jobs: queued, and none of them runs"] == 0.5 + 1.0
    assert (spent["jobs: imports of NeMo"], spent["jobs: training steps"]) == (8.0 + 7.0, 4.0 + 1.0)
    assert sum(spent.values()) == 30.0


def test_the_bar_of_a_job_has_its_imports() -> None:
    _, _, wait, job = bars(TASKS, UPSTREAM)
    assert wait.split()[:4] == ["wait", "0.5", "2.5", "17.5"]
    pieces = job.split()[-1]
    assert {sign: pieces.count(sign) for sign in ".:-#"} == pytest.approx(
        {".": 3, ":": 24, "-": 9, "#": 12}, abs=1
    )
