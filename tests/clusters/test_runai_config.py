"""The file of a Run:ai cluster: a valid one, each way to break one, and names for Kubernetes."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from steptime.clusters.connections import Connection
from steptime.clusters.runai.cluster import RunaiConfig, connect
from steptime.clusters.runai.workloads import workload_name
from steptime.errors import UserError

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "clusters.md"


def test_the_example_of_the_documentation_is_whole():
    section = DOCUMENT.read_text().split("## Run:ai\n")[1]
    config = RunaiConfig.model_validate(yaml.safe_load(section.split("```yaml\n")[1].split("```")[0]))
    assert str(config.volume.local(config.root)) == "/mnt/nemo2-workspace/steptime"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"work_dir": "/elsewhere"}, "'/elsewhere' is not below any path in pvcs"),
        ({"work_dir": "/nemo workspace"}, "work_dir '/nemo workspace' and name 'dgx' are used in a path"),
        ({"name": "$(touch canary)"}, "and name '$(touch canary)' are used in a path"),
        ({"pvcs": [{"claim": "a", "path": "/a; touch canary"}]}, "path"),
        (
            {"pvcs": [{"claim": "a", "path": "/nemo", "read_only": True}], "work_dir": "/nemo/steptime"},
            "claim 'a' is read_only, but jobs write to its work_dir",
        ),
    ],
    ids=str,
)
def test_a_broken_configuration_is_refused(make_runai_config, changes, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        make_runai_config(**changes)


def test_the_innermost_volume_holds_the_work_dir(make_runai_config):
    pvcs = [{"claim": "home", "path": "/data"}, {"claim": "fast", "path": "/data/fast"}]
    pvcs.append({"claim": "other", "path": "/a/path/that/is/longer"})
    config = make_runai_config(pvcs=pvcs, work_dir="/data/fast/steptime", shared_dir="/mnt/fast")
    assert str(config.volume.local("/data/fast/steptime/log")) == "/mnt/fast/steptime/log"


def test_names_are_legal_and_stay_apart():
    names = ["a", "A", "a.b", "a-b", "a_b", "0a", "a-", "a--1", *("x" * 199 + end for end in "012")]
    made = [workload_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", name) for name in made)
    assert max(map(len, made)) == 50


@pytest.mark.parametrize(
    ("of_file", "of_connection", "message"),
    [(None, None, "cluster dgx names no Run:ai project"), ("a,b==c", None, "a name has no comma")],
)
async def test_a_project_is_needed(make_runai_config, of_file, of_connection, message):
    async def connection(name):
        return Connection(name=name, kind="runai", host="https://x", extra={"project": of_connection})

    with pytest.raises(UserError, match=message):
        await connect(make_runai_config(project=of_file), connection).__aenter__()
