"""What steptime registers with Airflow's provider manager."""

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path

import airflow
from jsonschema import validate

from steptime import __version__


def test_airflow_finds_the_provider_and_its_info_is_valid():
    [provider] = [
        point for point in entry_points(group="apache_airflow_provider") if "steptime" in point.value
    ]
    info = provider.load()()

    assert info["versions"] == [__version__]
    schema = Path(airflow.__file__).with_name("provider_info.schema.json")
    validate(info, json.loads(schema.read_text()))
    for path in info["extra-links"]:
        module, name = path.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name)
