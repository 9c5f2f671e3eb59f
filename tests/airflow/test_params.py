"""The trigger form, and the request that the first task makes of its params."""

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from steptime.airflow.params import dag_params, plan_from_params
from steptime.errors import UserError
from steptime.recipes.planning import parse_request
from steptime.recipes.request import sections
from steptime.recipes.workloads import list_workloads, load_workload


def form(workload: str = "llama3.1", **defaults: Any) -> dict[str, Any]:
    return dag_params(load_workload(workload), defaults)


@pytest.mark.parametrize("workload", list_workloads())
def test_every_form_is_complete_and_its_defaults_hold(workload: str) -> None:
    params = form(workload)

    for name, param in params.items():
        assert param.description, name
        assert param.schema.get("section", "Where") in sections()
    shown_at_once = [name for name, param in params.items() if "section" not in param.schema]
    assert shown_at_once[:3] == ["cluster", "size", "dtype"]
    assert "gpus" in shown_at_once
    ParamsDict(params).validate()


def test_defaults_are_told_as_what_they_come_to() -> None:
    params = form()

    assert params["size"].schema["values_display"] == {"null": "by default 8b for h100; tiny for cpu"}
    assert params["dtype"].schema["values_display"] == {
        "null": "by default bf16 for 8b, 70b, 405b, 405b-proxy; fp32 for tiny"
    }
    assert "Default: 50 for 8b, 70b, 405b, 405b-proxy; 20 for tiny." in params["max_steps"].description
    assert params["gpu_type"].schema["values_display"] == {"null": "by default cpu"}
    assert "Default: 20." in params["profile_start"].description


def test_scales_are_listed_by_size() -> None:
    assert "8b on h100: 8, 16, 32, 64, 128 (by default 8); " in form()["gpus"].description
    assert "405b-proxy on h100: 32, 64, 128 (by default 32)." in form()["gpus"].description
    nemotron4 = form("nemotron4-340b-25.12")["gpus"].description
    assert "340b on gb300, gb200: 128, 256, 512 (by default 128); " in nemotron4


def test_a_form_does_without_the_plan_of_a_cluster_that_is_broken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.parent / "config" / "clusters" / "local.yaml").write_text("kind: local\n")

    params = form()
    assert "For example" not in params["gpus"].description
    assert params["cluster"].value == "local"


def test_every_empty_field_means_its_default(home: Path) -> None:
    params = form()
    emptied = {name: None for name, param in params.items() if "null" in param.schema["type"]}
    assert set(emptied) == set(params) - {"scaling"}, "which is chosen from a list"
    ParamsDict(params | emptied).validate()

    assert plan_from_params("llama3.1", emptied) == plan_from_params("llama3.1", {})


@pytest.mark.parametrize(("chosen", "meant"), [("on", True), ("off", False), (True, True), (None, None)])
def test_a_switch_of_the_recipe_can_be_left_alone(home: Path, chosen: object, meant: bool | None) -> None:
    params = ParamsDict(form())
    params["gres"] = chosen
    assert parse_request({"workload": "llama3.1", **params.dump()}).cluster_options.get("gres") is meant


def test_airflow_refuses_values_of_the_wrong_type_and_takes_what_the_check_takes() -> None:
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
def test_what_cannot_be_run_is_refused_in_one_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_from_params("llama3.1", params)

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_more_ranks_than_the_cluster_has_slots_are_refused_before_anything_is_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(
        UserError, match="tiny·fp32·4 needs 4 slots and local has 2: plan fewer, or set slots: 4"
    ):
        plan_from_params("llama3.1", {"gpus": "4"})
