"""A state folder and config of the test's own with a local cluster, and runs planned on it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from steptime.clusters.config import load_cluster
from steptime.clusters.local.cluster import connect
from steptime.recipes.planning import PlanRequest, plan


@pytest.fixture
def config_folder(tmp_path, tmp_path_factory):
    """Return `tmp_path / "config"`, a link to an empty folder with the same path in each test.

    What is read from a file is cached by its path: with another path each test would read all again.
    """
    folder = tmp_path_factory.getbasetemp() / "config-of-a-test"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (tmp_path / "config").symlink_to(folder)
    return folder


@pytest.fixture
def home(tmp_path, config_folder, monkeypatch):
    """Yield a state folder; the config has a local cluster that is polled often and has many slots.

    Jobs that a test leaves are ended after it.
    """
    config = config_folder
    shipped = Path(__file__).parents[1] / "config"
    for entry in shipped.iterdir():
        if entry.name != "clusters":
            (config / entry.name).symlink_to(entry)
    (config / "clusters").mkdir()
    (config / "clusters" / "local.yaml").write_text(
        'name: local\nkind: local\ngpu_type: cpu\nwork_dir: "{STEPTIME_HOME}"\nslots: 16\nexclusive: false\n'
        "grace_s: 1\npoll_interval_s: 0.1\n"
    )
    state = tmp_path / "home"
    monkeypatch.setenv("STEPTIME_HOME", str(state))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    monkeypatch.delenv("STEPTIME_STORE_URL", raising=False)
    yield state
    for job in state.glob("clusters/local/jobs/*"):
        asyncio.run(connect(load_cluster("local")).cancel(job.name))


@pytest.fixture
def planned(home):
    """Return a function that plans a tiny Llama on the test's cluster; keywords are fields of PlanRequest."""

    def make(**request):
        return plan(PlanRequest.model_validate({"workload": "llama3.1", "gpus": "1", **request}))

    return make


@pytest.fixture
def a_run(planned):
    """Return a function that plans one run; keywords are environment variables of the stand-in."""
    return lambda **environment: planned(environment=environment).runs[0]
