"""The trigger form, and the request that the first task makes of its params."""

import itertools

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from steptime.airflow.params import dag_params, plan_from_params
from steptime.cli.options import flag_of
from steptime.errors import UserError
from steptime.recipes.planning import parse_request, plan
from steptime.recipes.request import options_in_words, sections
from steptime.recipes.workloads import list_workloads, load_workload


def form(workload="llama3.1", **defaults):
    return dag_params(load_workload(workload), defaults)


@pytest.mark.parametrize("workload", list_workloads())
def test_every_form_is_complete_and_its_defaults_hold(workload):
    params = form(workload)

    for name, param in params.items():
        assert param.description, name
        assert param.schema.get("section", "Where") in sections()
    shown_at_once = [name for name, param in params.items() if "section" not in param.schema]
    assert shown_at_once[:3] == ["cluster", "size", "dtype"]
    assert "gpus" in shown_at_once
    ParamsDict(params).validate()


def test_defaults_are_told_as_what_they_come_to():
    params = form()

    assert params["size"].schema["values_display"] == {"null": "by default 8b for h100; tiny for cpu"}
    assert params["dtype"].schema["values_display"] == {
        "null": "by default bf16 for 8b, 70b, 405b, 405b-proxy; fp32 for tiny"
    }
    assert "Default: 50 for 8b, 70b, 405b, 405b-proxy; 20 for tiny." in params["max_steps"].description
    assert params["gpu_type"].schema["values_display"] == {"null": "by default cpu"}
    assert "Default: 20." in params["profile_start"].description


def test_scales_are_listed_by_size():
    assert "8b on h100: 8, 16, 32, 64, 128 (by default 8); " in form()["gpus"].description
    assert "tiny on cpu: 1, 2, 4 (by default 1, 2); " in form()["gpus"].description
    assert "405b-proxy on h100: 32, 64, 128 (by default 32)." in form()["gpus"].description
    nemotron4 = form("nemotron4-340b-25.12")["gpus"].description
    assert "340b on gb300, gb200: 128, 256, 512 (by default 128); " in nemotron4


def test_a_form_does_without_the_plan_of_a_cluster_that_is_broken(home, monkeypatch):
    (home.parent / "config" / "clusters" / "local.yaml").write_text("kind: local\n")

    params = form()
    assert "For example" not in params["gpus"].description
    assert params["cluster"].value == "local"


def test_every_empty_field_means_its_default(home):
    params = form()
    emptied = {name: None for name, param in params.items() if "null" in param.schema["type"]}
    assert set(emptied) == set(params) - {"scaling"}, "which is chosen from a list"
    ParamsDict(params | emptied).validate()

    assert plan_from_params("llama3.1", emptied) == plan_from_params("llama3.1", {})


@pytest.mark.parametrize(("chosen", "meant"), [("on", True), ("off", False), (True, True), (None, None)])
def test_a_switch_of_the_recipe_can_be_left_alone(home, chosen, meant):
    params = ParamsDict(form())
    params["gres"] = chosen
    assert parse_request({"workload": "llama3.1", **params.dump()}).cluster_options.get("gres") is meant


def test_airflow_refuses_values_of_the_wrong_type_and_takes_what_the_check_takes():
    params = ParamsDict(form())
    for name, value in {"size": "9b", "gpus": "8,", "time_limit": "00:61:00", "max_steps": "many"}.items():
        with pytest.raises(ParamValidationError):
            params[name] = value
    for name, value in {"gpus": " 8 - 128, 256 ", "time_limit": " 1:00:00"}.items():
        params[name] = value
        assert params[name] == value


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"gpuss": "8"}, "unknown parameter 'gpuss': did you mean 'gpus'"),
        ({"size": "8b", "gpu_type": "h100"}, "cluster 'local' has cpu, not h100"),
        ({"workload": "nemotron4"}, "start the DAG 'steptime_nemotron4-25.04'"),
        ({"environment": {"HF_TOKEN": "hf_1"}}, "HF_TOKEN"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(params, sentence):
    with pytest.raises(UserError) as refused:
        plan_from_params("llama3.1", params)

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_more_ranks_than_the_cluster_has_slots_are_refused_before_anything_is_staged(
    monkeypatch,
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(
        UserError, match="tiny·fp32·4 needs 4 slots and local has 2: plan fewer, or set slots: 4"
    ):
        plan_from_params("llama3.1", {"gpus": "4"})


MODES = [
    {"checkpoint": True},
    {"save_checkpoint": True},
    {"load_checkpoint": "/shared/x"},
    {"profile": True},
    {"nccl_trace": True},
]
EXCLUDED = [
    *({**first, **second} for first, second in itertools.combinations(MODES, 2)),
    *({"async_save": True, **mode} for mode in MODES[2:]),
    *({"profile_start": 3, **mode} for mode in MODES if "profile" not in mode),
    *({"gpu_metrics": True, **mode} for mode in MODES if "profile" not in mode),
    *({"profile_ranks": "0", **mode} for mode in MODES if "profile" not in mode),
    {"load_checkpoint": "/shared/x", "window": "1:2"},
    {"load_checkpoint": "/shared/x", "gpus": "1,2"},
    {"load_checkpoint": "/a-consumed_samples=320.0", "gpus": "2", "max_steps": 3},
    {"profile": True, "profile_start": 9, "profile_stop": 3},
    {"max_steps": 5, "window": "4:9"},
    {"profile": True, "gpu_metrics": True},
    {"gpus": "2", "tensor_parallel": 4},
    {"proxy": True, "size": "tiny"},
    {"partition": "batch"},
    {"arguments": {"seq_length": "1"}},
    {"tp_comm_overlap": "on"},
    {"cuda_graphs": "on"},
]
"""Params that exclude each other, or that do not fit the tiny model on this machine."""


@pytest.mark.parametrize("params", EXCLUDED, ids="+".join)
def test_what_excludes_each_other_is_refused_in_the_forms_words(home, params):
    titles = {name: str(param.schema["title"]) for name, param in form().items()}
    with pytest.raises(UserError) as refused:
        plan_from_params("llama3.1", params)
    message = str(refused.value)
    named = [name for name in titles if f"'{titles[name]}'" in message]
    assert set(named) & set(params), f"no field to change in: {message}"
    assert "`" not in message
    assert not [name for name in titles if "_" in name and name in message]
    for name in named:
        section = form()[name].schema.get("section")
        assert section is None or f"'{titles[name]}' (section {section})" in message


@pytest.mark.parametrize("params", EXCLUDED, ids="+".join)
def test_the_command_refuses_the_same_and_names_its_flags(home, params):
    with pytest.raises(UserError) as refused, options_in_words(flag_of):
        plan(parse_request({"workload": "llama3.1", **params}))
    flags = [flag_of(name) for name in params if flag_of(name) in str(refused.value)]
    assert flags, str(refused.value)
    assert "`" not in str(refused.value)
