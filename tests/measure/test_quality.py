"""Every check of a finished run: a good run passes, and each kind of bad run fails with rows and values."""

import logging
import pickle
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace

import pytest
from named_runs import SAVED_AT, run_of

from steptime.clusters.base import JobState, JobStatus
from steptime.errors import UserError
from steptime.logs.training_log import CheckpointTiming, Network, Problem
from steptime.measure import step_checks
from steptime.measure.metrics import measure
from steptime.measure.quality import (
    FinishedRun,
    fabric_used,
    measured_over_window,
    parallelism_as_planned,
    validate,
)
from steptime.measure.record import make_record
from steptime.recipes.models import Mode, OwnProgram, Performance, Window
from steptime.store.run_records import EarlierAttempt, parse_record


def judged(result, **log_changes):
    log = result.log.model_copy(update=log_changes)
    return validate(result.run, result.status, log, result.measurement)


def with_step(log, number, **changes):
    return tuple(replace(step, **changes) if step.global_step == number else step for step in log.steps)


def only_failure(verdict):
    assert [check.name for check in verdict.failures] == [verdict.failures[0].name]
    return verdict.failures[0]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_good_run_of_every_mode_is_valid(make_result, mode):
    verdict = judged(make_result(mode=mode))

    assert verdict.valid, verdict.failures
    assert not verdict.warnings
    names = [check.name for check in verdict.checks]
    assert len(names) == len(set(names)) >= 12
    assert all(check.message[0].isupper() and check.message.endswith(".") for check in verdict.checks)


@pytest.mark.service
def test_great_expectations_logs_nothing_of_its_own(make_result, tmp_path):
    result = make_result()
    (tmp_path / "run").write_bytes(pickle.dumps((result.run, result.log.steps)))
    program = (
        "import logging, pickle; logging.basicConfig(level=logging.INFO)\n"
        "from steptime.measure.step_checks import check_rows\n"
        "print(len(check_rows(*pickle.load(open('run', 'rb')))))"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True)

    assert (int(done.stdout) >= 6, done.stderr) == (True, b"")


@pytest.mark.parametrize(
    ("number", "changes", "name", "found"),
    [
        (12, {"step_time_s": 0.0}, "step_times_positive_and_finite", "0 at global step 12"),
        (12, {"step_time_s": float("inf")}, "step_times_positive_and_finite", "inf at global step 12"),
        (12, {"step_time_s": float("nan")}, "step_times_positive_and_finite", "nan at global step 12"),
        (0, {"loss": float("nan")}, "losses_finite", "nan at global step 0"),
        (7, {"loss": None}, "losses_finite", "none at global step 7"),
        (19, {"global_batch_size": 8}, "global_batch_size_as_planned", "found 8 at global step 19"),
        (5, {"consumed_samples": 80}, "consumed_samples_consistent", "found 80 at global step 5"),
    ],
)
def test_a_bad_value_is_named_with_its_row(make_result, number, changes, name, found):
    result = make_result()

    failure = only_failure(judged(result, steps=with_step(result.log, number, **changes)))

    assert failure.name == name
    assert found in failure.message
    assert failure.message.startswith("Expected that ")


def test_many_bad_rows_are_counted(make_result):
    result = make_result()
    steps = tuple(replace(step, loss=float("nan")) for step in result.log.steps)

    message = only_failure(judged(result, steps=steps)).message

    assert message == (
        "Expected that every loss is finite, but found nan at global step 0, nan at global step 1, "
        "nan at global step 2, nan at global step 3, nan at global step 4, nan at global step 5 and 14 more."
    )


@pytest.mark.parametrize(
    ("missing", "told"),
    [((10,), "10 is"), ((15,), "15 is"), ((11, 12, 14), "11 to 12, 14 are")],
)
def test_a_gap_in_the_window_is_named(make_result, missing, told):
    """Both ends of the window belong to it."""
    result = make_result()
    run = result.run.model_copy(update={"window": Window(first=10, last=15)})
    steps = tuple(step for step in result.log.steps if step.global_step not in missing)
    log = result.log.model_copy(update={"steps": steps})

    failures = {check.name: check.message for check in validate(run, result.status, log, None).failures}

    assert failures.keys() == {"window_complete", "measured_over_window"}
    many = "s" if len(missing) > 1 else ""
    assert failures["window_complete"] == (
        f"Expected that every step of the window 10:15 is in the log, but global step{many} {told} missing."
    )


@pytest.mark.parametrize("step", [-1, 20])
def test_a_step_that_was_not_planned_is_named(make_result, step):
    result = make_result()
    other = replace(result.log.steps[3], global_step=step, consumed_samples=None)

    failure = only_failure(judged(result, steps=(*result.log.steps, other)))

    assert failure.name == "steps_as_planned"
    assert failure.message.endswith(f"but they run from {min(step, 0)} to {max(step, 19)}.")


def test_a_run_begins_and_ends_as_planned_outside_of_its_window_too(make_result):
    result = make_result()
    run = result.run.model_copy(update={"window": Window(first=5, last=15)})
    for steps, found in ((result.log.steps[1:], "from 1 to 19"), (result.log.steps[:-1], "from 0 to 18")):
        log = result.log.model_copy(update={"steps": steps})
        failures = {check.name: check.message for check in validate(run, result.status, log, None).failures}
        assert failures["steps_as_planned"].endswith(f"but they run {found}.")


def test_a_run_that_died_early_fails_with_everything_it_lacks(make_result):
    result = make_result()
    died = JobStatus(state=JobState.FAILED, reason="killed by signal 9", exit_code=137)
    log = result.log.model_copy(update={"steps": result.log.steps[:15], "ended": None})

    failures = {check.name: check.message for check in validate(result.run, died, log, None).failures}

    assert set(failures) == {
        "job_succeeded",
        "window_complete",
        "steps_as_planned",
        "training_completed",
        "measured_over_window",
    }
    assert "its state is 'failed' with exit code 137 (killed by signal 9)" in failures["job_succeeded"]
    assert "run from 0 to 19, but they run from 0 to 14" in failures["steps_as_planned"]
    assert "global steps 15 to 19 are missing" in failures["window_complete"]


def test_a_log_without_steps_is_one_sentence(make_result):
    failures = {check.name: check.message for check in judged(make_result(), steps=()).failures}

    assert "has no line of a training step" in failures["window_complete"]
    assert "losses_finite" not in failures, "what there is none of was not checked"


@pytest.mark.parametrize(("loss", "is_valid"), [(None, True), (float("nan"), False), (2.5, True)])
def test_losses_of_a_program_that_prints_none_are_not_checked(make_result, loss, is_valid):
    """Such as torchtitan's, if the log is of the first stage of its pipeline."""
    result = make_result()
    launcher = OwnProgram(kind="command", command=("train",))
    run = result.run.model_copy(
        update={"recipe": result.run.recipe.model_copy(update={"launcher": launcher})}
    )
    steps = tuple(replace(step, loss=loss) for step in result.log.steps)
    log = result.log.model_copy(update={"steps": steps})
    assert validate(run, result.status, log, result.measurement).valid is is_valid
    one_less = result.log.model_copy(update={"steps": with_step(log, 7, loss=None)})
    assert validate(run, result.status, one_less, result.measurement).valid is (loss is None)


def test_an_mfu_above_100_percent_is_a_warning(make_result):
    result = make_result()
    measured = measure(result.run, result.log).model_copy(update={"mfu_percent": 100.3})

    verdict = validate(result.run, result.status, result.log, measured)

    assert verdict.valid
    check = by_name(verdict)["mfu_possible"]
    assert (check.passed, check.severity) == (False, "warning")
    assert "but it is 100.3 %: the peak is too low" in check.message
    whole = measured.model_copy(update={"mfu_percent": 100.0})
    assert by_name(validate(result.run, result.status, result.log, whole))["mfu_possible"].passed


def test_a_measurement_is_of_the_whole_window_and_of_no_other(make_result):
    result = make_result()
    measured = measure(result.run, result.log)
    last = result.run.model_copy(update={"window": Window(first=19, last=19)})
    for run, measurement, told in (
        (result.run, measured, None),
        (
            result.run,
            measured.model_copy(update={"window": Window(first=5, last=14)}),
            "10:19 of 10 steps, but it is over 10 of the window 5:14.",
        ),
        (
            result.run,
            measured.model_copy(update={"steps_in_window": 9}),
            "10:19 of 10 steps, but it is over 9 of the window 10:19.",
        ),
        (last, None, "19:19 of 1 step, but there is no measurement."),
    ):
        [check] = measured_over_window(FinishedRun(run, result.status, result.log, measurement))
        assert (told or "10:19 of 10 steps.") in check.message
        assert check.passed is (told is None)


def test_a_run_that_needed_another_job_counts_and_says_so(make_result):
    result = make_result()
    lost = JobStatus(state=JobState.FAILED, reason="NODE_FAIL")
    first = result.job.model_copy(update={"job_id": "17"})
    earlier_attempts = (EarlierAttempt(job=first, status=lost),)
    record = make_record(result.submitted, result.status, result.log, earlier_attempts)

    recorded = parse_record(record)
    assert recorded is not None
    verdict = validate(
        result.run,
        result.status,
        result.log,
        result.measurement,
        earlier_attempts=recorded.earlier_attempts,
    )

    assert verdict.valid
    assert "this is attempt 2, after job 17 (failed: NODE_FAIL)." in by_name(verdict)["first_attempt"].message


def test_a_step_listed_twice_is_named(make_result):
    result = make_result()

    failure = only_failure(judged(result, steps=(*result.log.steps, result.log.steps[11])))

    assert failure.name == "steps_once"
    assert "but global step 11 is" in failure.message


def test_lines_repeated_by_ranks_are_named_and_do_no_harm(make_result):
    repeated = Problem(
        kind="repeated_lines", message="8 ranks printed each step.", fatal=False, steps=(11, 12)
    )

    verdict = judged(make_result(), problems=(repeated,))

    assert verdict.valid
    assert "lines that several ranks repeated count once" in by_name(verdict)["no_step_trained_twice"].message


def test_a_restart_within_the_window_spoils_it_and_before_it_does_not(make_result):
    def restart(*steps):
        return (Problem(kind="duplicate_steps", message="restarted", fatal=True, steps=steps),)

    inside, before = (
        judged(make_result(), problems=restart(8, 9, 10)),
        judged(make_result(), problems=restart(8, 9)),
    )

    expected = "no step of the window was trained twice"
    assert by_name(judged(make_result()))["no_step_trained_twice"].message == f"N{expected[1:]}."
    assert only_failure(inside).name == "no_step_trained_twice"
    assert only_failure(inside).message == (
        f"Expected that {expected}, but a restart trained global step 10 again, "
        "so that times of two attempts are mixed."
    )
    ends = {steps: judged(make_result(), problems=restart(*steps)).valid for steps in ((10,), (19,), (20,))}
    assert ends == {(10,): False, (19,): False, (20,): True}  # both ends belong to the window
    several = only_failure(judged(make_result(), problems=restart(13, 10, 11))).message
    assert "a restart trained global steps 10 to 11, 13 again, so" in several
    assert before.valid
    assert "global steps 8 to 9 again, outside of it" in by_name(before)["no_step_trained_twice"].message


def test_a_fatal_problem_of_the_log_stops_the_result(make_result):
    problems = (
        Problem(kind="nccl_timeout", message="rank 3 waited 600 s in an all-reduce.", fatal=True),
        Problem(kind="slow_start", message="140 s", fatal=False),
    )

    failure = only_failure(judged(make_result(), problems=problems))

    assert failure.message == (
        "Expected that the log names no failure, but it names this: rank 3 waited 600 s in an all-reduce."
    )


def test_parallelism_is_compared_with_what_the_trainer_set_up(make_result):
    result = make_result()
    started = {**(result.log.started or {}), "tensor_parallel": 2, "data_parallel": 1}

    failure = only_failure(judged(result, started=started))

    assert failure.name == "parallelism_as_planned"
    assert (
        "tensor_parallel 2 instead of the planned 1, data_parallel 1 instead of the planned 2"
        in failure.message
    )
    assert "no 'steptime.start' record" in only_failure(judged(result, started=None)).message
    planned = ("world_size", "tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel")
    for name in (*planned, "micro_batch_size", "global_batch_size", "seq_length", "num_layers"):
        unstated = {field: value for field, value in (result.log.started or {}).items() if field != name}
        log = result.log.model_copy(update={"started": unstated})
        [check] = parallelism_as_planned(FinishedRun(result.run, result.status, log, None))
        assert not check.passed
        assert f"the trainer set up {name} (not stated) instead" in check.message


def test_expert_parallelism_is_compared_where_it_is_planned(make_result):
    result = make_result()
    run = result.submitted.run
    spread = run.recipe.parallelism.model_copy(update={"expert": 2})
    mixture = run.model_copy(update={"recipe": run.recipe.model_copy(update={"parallelism": spread})})
    result = result.model_copy(update={"submitted": result.submitted.model_copy(update={"run": mixture})})
    started = result.log.started or {}

    failure = only_failure(judged(result, started={**started, "expert_parallel": 1}))

    assert "the trainer set up expert_parallel 1 instead of the planned 2" in failure.message
    assert not judged(result, started={**started, "expert_parallel": 2}).failures


def test_a_log_that_shows_no_batch_size_cannot_confirm_it(make_result):
    result = make_result()
    bare = {"global_batch_size": None, "consumed_samples": None}
    steps = tuple(replace(step, **bare) for step in result.log.steps)

    assert only_failure(judged(result, steps=steps)).name == "batch_size_stated"


@pytest.mark.parametrize(("iteration", "counted"), [(19, "from 0"), (20, "from 1")])
def test_both_ways_of_counting_the_saved_iteration_are_accepted(make_result, iteration, counted):
    saved = CheckpointTiming(kind="save", iteration=iteration, started_at=1.0, duration_s=0.1, blocked_s=0.1)

    verdict = judged(make_result(mode=Mode.CHECKPOINT_SAVE), checkpoints=(saved,))

    assert verdict.valid
    assert f"(iteration {iteration}, counted {counted})" in by_name(verdict)["checkpoint_saved"].message


@pytest.mark.parametrize(
    ("iterations", "found"),
    [([], "no checkpoint save line"), ([9], "iteration 9."), ([None, 10], "no number, 10")],
)
def test_a_wrong_or_missing_save_is_named(make_result, iterations, found):
    saves = tuple(
        CheckpointTiming(kind="save", iteration=iteration, started_at=1.0, duration_s=0.1, blocked_s=0.1)
        for iteration in iterations
    )

    failure = only_failure(judged(make_result(mode=Mode.CHECKPOINT_SAVE), checkpoints=saves))

    assert failure.name == "checkpoint_saved"
    assert found in failure.message
    assert judged(make_result(), checkpoints=saves).valid, "only a saving run is asked for a save"


def test_a_load_must_have_loaded_and_resumed_where_the_save_ended(make_result):
    result = make_result(mode=Mode.CHECKPOINT_LOAD)
    resumed = {"checkpoint_path": "/c", "global_step": 0, "consumed_samples": 0}

    assert only_failure(judged(result, checkpoints=())).name == "checkpoint_loaded"
    assert only_failure(judged(result, resumed=None)).name == "resumed_at_saved_step"
    elsewhere = resumed | {"global_step": 19, "consumed_samples": 312}
    assert "at global step 19 with 312 consumed" in only_failure(judged(result, resumed=elsewhere)).message
    assert only_failure(judged(result, resumed=resumed)).message == (
        "Expected that training resumed at global step 19 with 304 consumed samples, "
        "but it resumed at global step 0 with 0 consumed samples."
    )


def test_a_load_by_name_is_judged_by_its_load_lines_alone(make_result):
    """Megatron-Bridge does not record where it resumed."""
    run = run_of(mode=Mode.CHECKPOINT_LOAD)
    result = make_result()

    def resumed(*iterations):
        loads = tuple(
            CheckpointTiming(kind="load", iteration=number, started_at=1.0, duration_s=0.1)
            for number in iterations
        )
        log = result.log.model_copy(update={"checkpoints": loads})
        checks = validate(run, result.status, log, None).checks
        return [check for check in checks if check.name == "resumed_at_saved_step"]

    assert [check.passed for check in resumed(SAVED_AT)] == [True]
    [failed] = resumed(SAVED_AT - 1)
    assert failed.message == (
        f"Expected that training resumed at global step {SAVED_AT}, "
        f"but the load lines give iteration {SAVED_AT - 1}."
    )
    assert [check.message.endswith("the load lines give iteration no number.") for check in resumed()] == [
        True
    ]


def test_of_a_run_by_name_nothing_is_asked_that_the_trainer_alone_records(make_result):
    """Megatron-Bridge does not record its start, its end, or how ranks were bound."""
    result = make_result()
    run = run_of().model_copy(update={"performance": Performance(ranks_per_numa_node=2, vboost=True)})
    log = result.log.model_copy(update={"started": None, "ended": None, "steps": ()})
    assert [check.name for check in validate(run, result.status, log, None).checks] == [
        *("job_succeeded", "log_without_failure", "window_complete", "measured_over_window"),
    ]


def test_a_noisy_window_is_a_warning_and_counts(make_result):
    verdict = judged(make_result(step_times=[0.4, 0.9] * 10))

    assert verdict.valid
    assert [check.name for check in verdict.warnings] == ["step_times_steady"]
    assert "at most 30 % of their mean, 0.195 s, but it is 0.2635 s" in verdict.warnings[0].message


@pytest.mark.parametrize(("factor", "warned"), [(1.099, False), (1.101, True), (0.899, True)])
def test_a_wall_time_apart_from_the_step_time_is_a_warning(make_result, factor, *, warned):
    """Only steps in the window count. The warning has both times."""
    result = make_result(step_times=[0.4] * 20)
    steps = tuple(
        replace(step, wall_time_s=0.4 * (factor if step.global_step >= 10 else 9))
        for step in result.log.steps
    )
    log = result.log.model_copy(update={"steps": steps})

    verdict = validate(result.run, result.status, log, measure(result.run, log))

    assert verdict.valid
    assert [check.name for check in verdict.warnings] == ["wall_time_agrees"] * warned
    if warned:
        found = f"it is {0.4 * factor:.4g} s beside a step time of 0.4 s ({100 * (factor - 1):+.1f} %"
        assert found in verdict.warnings[0].message
    assert "wall_time_agrees" not in {check.name for check in judged(result).checks}, "nothing was logged"
    for unknown in ("step_time_median_s", "wall_time_median_s"):
        measured = measure(result.run, log).model_copy(update={unknown: None})
        assert "wall_time_agrees" not in by_name(validate(result.run, result.status, log, measured))


@pytest.mark.parametrize(("steps", "asked"), [(1, False), (2, True)])
def test_the_spread_is_that_of_the_window_alone(make_result, steps, *, asked):
    """One step has no spread; steps before and after the window may take any time."""
    result = make_result(step_times=[9.0, 0.1] * 5 + [0.4, 0.42] + [9.0, 0.1] * 4)
    run = result.run.model_copy(update={"window": Window(first=10, last=9 + steps)})

    checks = by_name(validate(run, result.status, result.log, None))

    assert ("step_times_steady" in checks) is asked
    if asked:
        assert checks["step_times_steady"].passed
        assert "at most 30 % of their mean, 0.123 s." in checks["step_times_steady"].message


def test_thresholds_come_from_a_strict_file(make_result, tmp_path, monkeypatch):
    result = make_result()
    folder = tmp_path / "expectations"
    folder.mkdir()
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    steps = (
        "step_time_variation_percent: {default: 5, cpu: 0.001}\nwall_time_difference_percent: {default: 3}\n"
    )
    (folder / "steps.yaml").write_text(steps)
    verdict = validate(result.run, result.status, result.log, result.measurement)
    assert [check.name for check in verdict.warnings] == ["step_times_steady"]

    (folder / "steps.yaml").write_text(steps.replace("default: 5, ", ""))
    with pytest.raises(UserError, match=r"steps\.yaml, line 1.*needs the key 'default'"):
        judged(result)


def test_great_expectations_leaves_nothing_behind(
    tmp_path,
    make_result,
    monkeypatch,
    capfd,
):
    """It leaves no file in the working, home or temporary folder, prints and logs nothing, uses no network.

    Nor does it read anything there, such as a user's own project.
    """

    def refuse(*_):
        raise AssertionError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "gx" / "great_expectations.yml"
    project.parent.mkdir()
    project.write_text("no project of ours")
    of_library = [logging.getLogger(f"great_expectations{name}") for name in ("", ".data_context.types.base")]
    for logger in of_library:
        logger.setLevel(logging.INFO)  # as the module of the second one does when imported
    step_checks._batches.cache_clear()

    assert judged(make_result()).valid

    assert capfd.readouterr() == ("", "")
    assert sorted(tmp_path.rglob("*")) == [project.parent, project]
    assert [logger.level for logger in of_library] == [logging.WARNING] * 2


def by_name(verdict):
    return {check.name: check for check in verdict.checks}


def test_a_run_without_the_binding_and_vboost_of_its_publication_counts_with_a_warning(
    make_result,
):
    result = make_result(gpus=4)
    published = result.run.model_copy(update={"performance": Performance(ranks_per_numa_node=2, vboost=True)})

    def warned(run, launch):
        started = {**(result.log.started or {}), **({} if launch is None else {"launch": launch})}
        log = result.log.model_copy(update={"started": started})
        verdict = validate(run, result.status, log, result.measurement)
        assert verdict.valid
        return [f"{check.name}: {check.message}" for check in verdict.warnings]

    bound, unset = "numa_binding_as_published", "vboost_as_published"
    assert warned(published, {"numa_bound_ranks": 4, "vboost": True}) == []
    assert warned(result.run, {"numa_bound_ranks": 0, "vboost": False}) == []
    [only] = warned(published, {"numa_bound_ranks": 3, "vboost": True})
    assert only.startswith(f"{bound}: Expected that every rank was bound to a NUMA node")
    assert "but 3 of 4 were" in only
    [only] = warned(published, {"numa_bound_ranks": 4, "vboost": False})
    assert only.startswith(f"{unset}: Expected that the GPUs' vboost was set")
    assert [line.partition(":")[0] for line in warned(published, None)] == [bound, unset]
    assert "but 0 of 4 were" in warned(published, None)[0]


BY_IB = Network(names=("IB",), nodes=2, rails=8, nvls=True)
BY_SOCKETS = Network(names=("Socket",), nodes=2, socket_nodes=("gb-016", "gb-017"))
HOLDS = "NCCL connects the nodes by InfiniBand"


def on_nodes(result, network, nodes):
    """Return the run on GPUs of a cluster with a fabric."""
    recipe = result.run.recipe.model_copy(update={"gpu_type": "h100"})
    run, log = (
        result.run.model_copy(update={"recipe": recipe}),
        result.log.model_copy(update={"network": network}),
    )
    status = result.status.model_copy(update={"nodes": nodes})
    return FinishedRun(run, status, log, result.measurement, fabric="InfiniBand")


@pytest.mark.parametrize(
    ("network", "passed", "severity", "message"),
    [
        (BY_IB, True, "error", f"{HOLDS} (IB, 8 rails, NVLS)."),
        (
            BY_SOCKETS,
            False,
            "error",
            f"Expected that {HOLDS}, but it fell back to sockets on gb-016, gb-017.",
        ),
        (
            None,
            False,
            "warning",
            f"Expected that {HOLDS}, but what it used is unknown: the log has no line 'NCCL INFO Using "
            "network', which NCCL_DEBUG=INFO gives.",
        ),
    ],
)
def test_a_fallback_to_sockets_is_named_where_the_cluster_has_a_fabric(
    make_result, network, passed, severity, message
):
    (check,) = fabric_used(on_nodes(make_result(), network, ("gb-016", "gb-017")))
    assert (check.name, check.passed, check.severity) == ("fabric_used", passed, severity)
    assert check.message == message


def test_no_fabric_is_missed_on_one_node_or_where_none_is_named(make_result):
    on_two = on_nodes(make_result(), BY_SOCKETS, ("gb-016", "gb-017"))
    on_one = on_nodes(make_result(), BY_SOCKETS, ("gb-016",))
    assert not [*fabric_used(on_two._replace(fabric=None)), *fabric_used(on_one)]
    recipe = on_one.run.recipe.model_copy(update={"gpus_per_node": 1})
    planned_on_two = on_one._replace(run=on_one.run.model_copy(update={"recipe": recipe}))
    assert [check.passed for check in fabric_used(planned_on_two)] == [False], "the cluster named one node"
