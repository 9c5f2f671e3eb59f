"""What Airflow's provider manager gets to know."""

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import walk_packages

import airflow
import pytest
from jsonschema import validate

from steptime import __version__
from steptime.airflow.hooks import RunaiHook
from steptime.airflow.provider import get_provider_info


def test_airflow_finds_the_provider_and_its_info_is_valid() -> None:
    [found] = [point for point in entry_points(group="apache_airflow_provider") if "steptime" in point.value]
    info = found.load()()

    assert info["versions"] == [__version__]
    schema = Path(airflow.__file__).with_name("provider_info.schema.json")
    validate(info, json.loads(schema.read_text()))
    for path in info["extra-links"]:
        module, name = path.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name)


@pytest.mark.long
def test_every_operator_sensor_trigger_and_hook_is_listed_with_where_it_is_described() -> None:
    """From the code: a module that defines one is in the list of its kind, and nothing else is."""
    from airflow.sdk import BaseHook, BaseOperator
    from airflow.triggers.base import BaseTrigger

    import steptime.airflow

    info = get_provider_info()
    modules = {
        kind: {name for entry in info[kind] for name in entry["python-modules"]}
        for kind in ("operators", "sensors", "triggers", "hooks")
    }
    found: dict[str, set[str]] = {kind: set() for kind in modules}
    for module in walk_packages(steptime.airflow.__path__, "steptime.airflow."):
        for thing in vars(importlib.import_module(module.name)).values():
            if not isinstance(thing, type) or thing.__module__ != module.name:
                continue
            if module.name == "steptime.airflow.base":  # what the others are made of
                continue
            if issubclass(thing, BaseTrigger):
                found["triggers"].add(module.name)
            elif issubclass(thing, BaseHook):
                found["hooks"].add(module.name)
            elif issubclass(thing, BaseOperator):
                found["sensors" if thing.__name__.endswith("Sensor") else "operators"].add(module.name)
    assert found == modules

    addresses = {entry["integration-name"]: entry["external-doc-url"] for entry in info["integrations"]}
    named = {entry["integration-name"] for kind in modules for entry in info[kind]}
    assert named == addresses.keys()
    assert all(address.startswith("https://") for address in addresses.values())
    assert {entry["hook-class-name"] for entry in info["connection-types"]} == {
        f"{RunaiHook.__module__}.{RunaiHook.__name__}"
    }
