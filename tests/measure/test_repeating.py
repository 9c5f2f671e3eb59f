"""The request of one run of a plan, and the command that asks for it again."""

import shlex

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.measure.repeating import make_request, repeat_command
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest


@pytest.mark.parametrize(
    "options",
    [
        {"workload": "llama3.1", "gpus": "2", "tensor_parallel": 2, "environment": {"A": "b c"}},
        {"workload": "llama3.1", "gpus": "1", "max_steps": 30, "window": "5:9", "time_limit": "00:05:00"},
        {"workload": "llama3.1", "size": "405b", "gpu_type": "h100", "gpus": "64", "proxy": True},
        {"workload": "llama3.1", "gpus": "2", "profile": True, "profile_ranks": "1", "profile_stop": 30},
        {"workload": "llama3.1", "size": "70b", "cuda_graphs": True, "tp_comm_overlap": False},
    ],
)
def test_the_command_to_repeat_a_run_plans_that_run(options):
    for run in plan(PlanRequest.model_validate(options)).all_runs:
        command = repeat_command(run, make_request(run, options))

        assert command is not None
        assert command.startswith("steptime run ")
        arguments = ["plan", *shlex.split(command)[2:], "--format", "csv"]
        listed = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert run.experiment in listed.stdout


def test_a_run_beside_a_checkpoint_is_repeated_without_one():
    options = {"workload": "llama3.1", "gpus": "2", "checkpoint": True, "async_save": True}
    for run in plan(PlanRequest.model_validate(options)).runs:
        assert [again.experiment for again in plan(make_request(run, options)).all_runs] == [run.experiment]


def test_one_run_of_several_is_asked_for_once_with_its_own_environment():
    options = {"workload": "llama3.1", "gpus": "2", "repeats": 3, "environment": {"A": "1"}}
    run = plan(PlanRequest.model_validate(options)).runs[0].model_copy(update={"environment": {"A": "2"}})

    request = make_request(run, options)

    assert (request.repeats, request.environment) == (1, {"A": "2"})
    repeated = run.model_copy(update={"repeat": 3})
    assert repeat_command(repeated, request) == repeat_command(run, request) is not None


def test_a_run_that_no_recipe_gives_has_no_command():
    options = {"workload": "llama3.1", "gpus": "2"}
    (run,) = plan(PlanRequest.model_validate(options)).runs
    request = make_request(run, options)
    assert repeat_command(run, request) is not None
    narrower = run.recipe.model.model_copy(update={"hidden_size": 128})

    changed = run.model_copy(update={"recipe": run.recipe.model_copy(update={"model": narrower})})

    assert repeat_command(changed, request) is None


def test_a_run_of_a_dag_whose_params_name_no_workload_has_a_request():
    (run,) = plan(PlanRequest(workload="llama3.1", gpus="2")).runs
    assert make_request(run, {}).workload == "llama3.1-25.04"
    assert repeat_command(run, make_request(run, {})) == repeat_command(
        run, make_request(run, {"gpus": "1,2"})
    )


COMMANDS = {
    "steptime run llama3.1-25.04 --size tiny --dtype fp32 --gpu-type cpu --gpus 2 --max-steps 20 "
    "--window 10:19 --time-limit 00:10:00 --env 'A=b c' --env B=": {"environment": {"A": "b c", "B": ""}},
    "steptime run llama3.1-25.04 --size 70b --dtype bf16 --gpu-type h100 --gpus 64 --max-steps 50 "
    "--window 49:49 --time-limit 00:30:00 --cuda-graphs --no-tp-comm-overlap": {
        **{"size": "70b", "cuda_graphs": True, "tp_comm_overlap": False, "repeats": 1}
    },
    "steptime run llama3.1-25.04 --size 8b --dtype bf16 --gpu-type h100 --gpus 8 --max-steps 25 "
    "--window 24:24 --time-limit 00:30:00 --profile --profile-start 20 --profile-stop 25": {
        **{"size": "8b", "profile": True}
    },
}


def test_a_command_names_what_may_change_and_leaves_out_what_is_the_default():
    for command, options in COMMANDS.items():
        request = {"workload": "llama3.1", **options}
        run = plan(PlanRequest.model_validate(request)).runs[-1 if "size" not in request else 0]
        assert repeat_command(run, make_request(run, request)) == command
