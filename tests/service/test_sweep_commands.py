"""`steptime sweep run`, `cancel`, `again`, and those of trials, against a REST API that keeps DAG runs."""

import pytest

from steptime.cli import dag_runs


class SweepUnderWay:
    """A sweep's DAG run; once marked as failed, as often as it takes, it has ended at the second look."""

    def __init__(self, api, state, *, takes_marks=1):
        self.state = state
        self.marked, self.takes_marks = 0, takes_marks
        run = "/api/v2/dags/steptime_sweep/dagRuns/sweep"
        dags = [{"dag_id": "steptime_sweep", "is_paused": False}]
        api.answers |= {
            "GET /api/v2/dags": (200, {"dags": dags, "total_entries": 1}),
            f"GET {run}": lambda _: self._answer(),
            f"PATCH {run}": self._patch,
        }

    def _answer(self):
        self.state, state = "failed" if self.marked >= self.takes_marks else self.state, self.state
        return 200, {"dag_id": "steptime_sweep", "dag_run_id": "sweep", "state": state}

    def _patch(self, body):
        assert body == {"state": "failed"}
        self.marked += 1
        return 200, {"dag_id": "steptime_sweep", "dag_run_id": "sweep", "state": self.state}


@pytest.mark.long
def test_cancelling_marks_the_sweep_as_failed_and_waits_for_its_end(api, steptime, capsys):
    sweep = SweepUnderWay(api, "running")
    assert steptime("sweep cancel sweep --dry-run") == 0
    assert (sweep.marked, capsys.readouterr().out) == (
        0,
        "would end sweep of steptime_sweep, which is running\n",
    )
    assert steptime("sweep cancel sweep") == 0
    assert (sweep.marked, sweep.state) == (1, "failed")
    assert capsys.readouterr().out == "ended sweep of steptime_sweep\n"


def test_a_sweep_that_has_ended_is_left_alone(api, steptime, capsys):
    sweep = SweepUnderWay(api, "success")
    assert steptime("sweep cancel sweep") == 0
    assert (sweep.marked, capsys.readouterr().out) == (0, "sweep is not running: its state is success\n")


def test_a_sweep_that_does_not_end_is_named(api, steptime, capsys, monkeypatch):
    SweepUnderWay(api, "running")
    monkeypatch.setattr(dag_runs, "_MARKED_EVERY_S", 0)
    monkeypatch.setattr(dag_runs, "_MARKS", 1)
    assert steptime("sweep cancel sweep") == 2
    assert "sweep has not ended: see http://127.0.0.1" in capsys.readouterr().err


def test_a_sweep_with_a_task_that_escaped_the_first_mark_is_marked_again(api, steptime, monkeypatch):
    """As Airflow leaves it if a task begins to wait while the mark is written."""
    sweep = SweepUnderWay(api, "running", takes_marks=2)
    monkeypatch.setattr(dag_runs, "_MARKED_EVERY_S", 0)
    assert steptime("sweep cancel sweep") == 0
    assert (sweep.marked >= 2, sweep.state) == (True, "failed")


def test_an_unknown_sweep_is_the_users_mistake(api, steptime, capsys):
    """Such as its name in place of its run id: those that are under way are listed."""
    SweepUnderWay(api, "running")
    runs = []
    listed = "GET /api/v2/dags/~/dagRuns"
    api.answers[listed] = lambda _: (200, {"dag_runs": runs, "total_entries": len(runs)})
    for known, dag_ids in (
        ("no {kind} runs now", []),
        ("run-0", ["steptime_{kind}", "steptime_llama3.1-25.04", "another_{kind}"]),
        ("run-0, run-1", ["steptime_{kind}", "steptime_{kind}_weekly"]),
    ):
        for kind in ("sweep", "trial"):
            runs[:] = [
                {"dag_id": name.format(kind=kind), "dag_run_id": f"run-{number}", "state": "running"}
                for number, name in enumerate(dag_ids)
            ]
            assert steptime(f"{kind} cancel weekly") == 1
            message = capsys.readouterr().err
            assert f"has no {kind} with the run id 'weekly': 'steptime {kind} run' prints it" in message
            assert f" Under way: {known.format(kind=kind)}.\n" in message


def test_one_cell_runs_again_by_an_explicit_list_of_its_tasks(api, steptime, capsys):
    SweepUnderWay(api, "failed")
    cells = ("a·tiny·fp32·1", "a·tiny·fp32·2")
    tasks = [{"task_id": "report", "map_index": -1, "rendered_map_index": None, "state": "failed"}]
    for index, cell in enumerate(cells):
        groups = {"performance": cell}
        if index:
            groups |= {f"checkpoint.{way}": f"{cell}·checkpoint {way}" for way in ("save", "load")}
        for group, label in groups.items():
            at = index if group == "performance" else 0
            names = {
                "submit": label,
                "wait": label,
                "publish": "" if index else None,
            }  # cleared; has not begun
            tasks += [
                {
                    "task_id": f"{group}.{name}",
                    "map_index": at,
                    "rendered_map_index": label,
                    "state": "failed",
                }
                for name, label in names.items()
            ]
    listed = [task | {"try_number": 1} for task in tasks]
    run = "/api/v2/dags/steptime_sweep/dagRuns/sweep"
    cleared = "POST /api/v2/dags/steptime_sweep/clearTaskInstances"
    api.answers |= {
        f"GET {run}/taskInstances": lambda _: (200, {"task_instances": listed, "total_entries": len(listed)}),
        cleared: (200, {"task_instances": [], "total_entries": 0}),
    }

    assert steptime(f"sweep again sweep {cells[0]} --dry-run") == 0
    assert api.asked(cleared) == []
    assert steptime(f"sweep again sweep {cells[0]}") == 0
    of_first = ("performance.submit", "performance.wait", "performance.publish")
    assert api.asked(cleared) == [
        {
            "dag_run_id": "sweep",
            "task_ids": [*([name, 0] for name in of_first), "report"],
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
        }
    ]
    told = f"run a·tiny·fp32·1 of sweep again: {', '.join(of_first)}\n"
    assert capsys.readouterr().out == f"would {told}runs {told.removeprefix('run ')}"

    assert steptime(f"sweep again sweep {cells[1]}") == 0
    again = api.asked(cleared)[-1]["task_ids"]
    assert {tuple(task) for task in again[:-1]} == {
        (f"{group}.{name}", index)
        for group, index in (("performance", 1), ("checkpoint.save", 0), ("checkpoint.load", 0))
        for name in ("submit", "wait", "publish")
    }
    capsys.readouterr()

    assert steptime("sweep again sweep a·tiny·fp32·3") == 1
    assert "unknown cell 'a·tiny·fp32·3': did you mean 'a·tiny·fp32·" in (told := capsys.readouterr().err)
    assert "Valid are: a·tiny·fp32·1, a·tiny·fp32·2·checkpoint save, " in told, "in the order of the grid"
    assert "None" not in told
    assert ", ," not in told
    listed[2]["state"] = "deferred"
    assert steptime(f"sweep again sweep {cells[0]}") == 1
    assert "performance.wait [a·tiny·fp32·1] is deferred: wait for its end" in capsys.readouterr().err
    assert len(api.asked(cleared)) == 2


def test_a_sweep_is_approved_after_its_cost_was_confirmed(api, steptime, capsys, monkeypatch):
    SweepUnderWay(api, "running")
    run = "/api/v2/dags/steptime_sweep/dagRuns/sweep"
    path = f"{run}/taskInstances/approve/-1/hitlDetails"
    looks = iter([(404, {"detail": "it has not asked"})])
    question = {
        "subject": "Start sweep weekly: 20 jobs, at most 912 GPU-hours?",
        "body": "expected 300 GPU-hours\n\n| cell |",
        "options": ["Approve", "Reject"],
        "response_received": False,
    }
    waiting = {"task_id": "approve", "map_index": -1, "state": "queued", "try_number": 1}
    api.answers |= {
        f"GET {path}": lambda _: next(looks, (200, question)),
        f"PATCH {path}": (200, {"chosen_options": ["Approve"]}),
        f"GET {run}/taskInstances": lambda _: (200, {"task_instances": [waiting], "total_entries": 1}),
    }
    confirmed = []
    monkeypatch.setattr(dag_runs.typer, "confirm", lambda text, **_: confirmed.append(text))
    assert steptime("sweep approve sweep") == 0
    assert confirmed == ["Approve?"]
    assert api.asked(f"PATCH {path}") == [{"chosen_options": ["Approve"]}]
    printed = capsys.readouterr().out
    assert printed.startswith("Start sweep weekly: 20 jobs, at most 912 GPU-hours?\nexpected 300 GPU-hours\n")
    assert "approved: see http://127.0.0.1" in printed

    question["response_received"] = True
    assert steptime("sweep approve sweep --yes") == 1
    assert "was answered already" in capsys.readouterr().err
    looks = iter([(404, {"detail": "it has not asked"})])
    waiting["state"] = "skipped"
    assert steptime("sweep approve sweep --yes") == 1
    assert "its task 'approve' is skipped" in capsys.readouterr().err
    assert len(api.asked(f"PATCH {path}")) == 1


def test_a_run_of_a_trial_runs_again_with_the_later_ones_that_were_skipped(api, steptime, capsys):
    """They may be needed if the new run makes the answer open again."""
    of_round = ("success", "success", "skipped", "skipped")
    tasks = [
        {
            "task_id": f"performance.{name}",
            "map_index": index,
            "rendered_map_index": f"{index}·ring",
            "state": "success" if name == "end" else state,
            "try_number": 1,
        }
        for index, state in enumerate(of_round)
        for name in ("submit", "end")
    ]
    tasks += [{**tasks[0], "task_id": "report", "map_index": -1, "rendered_map_index": None}]
    run, cleared = (
        "/api/v2/dags/steptime_trial/dagRuns/race",
        "POST /api/v2/dags/steptime_trial/clearTaskInstances",
    )
    dags = [{"dag_id": "steptime_trial", "is_paused": False}]
    api.answers |= {
        "GET /api/v2/dags": (200, {"dags": dags, "total_entries": 1}),
        f"GET {run}": (200, {"dag_id": "steptime_trial", "dag_run_id": "race", "state": "success"}),
        f"GET {run}/taskInstances": (200, {"task_instances": tasks, "total_entries": len(tasks)}),
        cleared: (200, {"task_instances": [], "total_entries": 0}),
    }
    assert steptime("trial again race 1·ring") == 0
    [asked] = api.asked(cleared)
    both = ("performance.submit", "performance.end")
    assert asked["task_ids"] == [*([name, index] for index in (1, 2, 3) for name in both), "report"]
    assert capsys.readouterr().out == (
        "runs 1·ring of race again: performance.submit, performance.end, and then 2 skipped runs after it if "
        "the answer is open again\n"
    )
