"""`steptime cluster`: a file that it adds passes its check, on the mini Slurm."""

import json
import shutil
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.config import load_cluster
from steptime.clusters.slurm.commands import Partition
from steptime.clusters.slurm.site import Site
from steptime.clusters.slurm.survey import Survey
from steptime.service import connection_file
from steptime.settings import config_dir

runner = CliRunner()


@pytest.fixture
def config(here, monkeypatch):
    """Return a copy of the shipped configuration, which commands read and write."""
    shutil.copytree(config_dir(), here / "config")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(here / "config"))
    return here / "config"


@pytest.mark.slurm
def test_a_cluster_that_was_added_passes_its_check(config, here, slurm_of_session):
    connection_file.keep(slurm_of_session.login)
    add = ["cluster", "add", "sel", "--connection", "mini_slurm", "--gpu-type", "cpu"]
    add += ["--work-dir", str(here / "work"), "--partition", "batch", "--container", "bwrap"]
    printed = runner.invoke(app, [*add, "--dry-run"])
    assert printed.exit_code == 0, printed.stderr
    assert not (config / "clusters" / "sel.yaml").exists()

    added = runner.invoke(app, add)
    assert added.exit_code == 0, added.stderr
    assert (config / "clusters" / "sel.yaml").read_text() == printed.stdout
    cluster = load_cluster("sel")
    assert isinstance(cluster, Site)
    assert (cluster.partition, cluster.account, cluster.container) == ("batch", "root", "bwrap")

    checked = runner.invoke(app, ["cluster", "check", "sel", "--format", "json"])
    assert checked.exit_code == 0, checked.stdout
    assert {check["result"] for check in json.loads(checked.stdout)["checks"]} == {"ok", "not applicable"}
    again = runner.invoke(app, add)
    assert isinstance(again.exception, ValueError)
    assert "exists already" in str(again.exception)


def surveyed(monkeypatch, *gres, accounts=("4711",)):
    """Let the login node show a default partition whose nodes have these GPUs, and one for tests."""
    debug = Partition(name="debug", is_default=False, is_up=True, state="idle", nodes=1, gres=gres[0])
    usual = {"name": "batch", "is_default": True, "is_up": True, "state": "drained", "nodes": 4}
    partitions = (debug, *(Partition(**usual, gres=one) for one in gres))
    seen = Survey(
        where="ada@login",
        partitions=partitions,
        accounts=accounts,
        containers=("pyxis", "bwrap"),
        folders=("/shared/ada",),
        pythons=("python3.12",),
    )

    async def look(*_):
        return seen

    monkeypatch.setattr("steptime.cli.clusters.survey", look)


@pytest.mark.parametrize(
    ("gres", "asked", "found"),
    [
        (["gpu:h100:4", "gpu:h100:8(S:0-1)"], [], ("h100", 8, "pyxis")),
        (["gpu:nvidia_gb200:4"], [], ("gb200", 4, "pyxis")),
        (["(null)"], [], ("cpu", None, "pyxis")),
        (["gpu:8"], ["--gpu-type", "b200", "--container", "none"], ("b200", 8, "none")),
    ],
    ids=["GPUs", "GPUs whose name ends as another's", "no GPUs", "GPUs without a type"],
)
def test_what_no_option_gives_is_as_the_login_node_shows_it(
    config,
    monkeypatch,
    gres,
    asked,
    found,
):
    surveyed(monkeypatch, *gres)
    added = runner.invoke(app, ["cluster", "add", "eos", *asked])
    assert added.exit_code == 0, added.output
    cluster = load_cluster("eos")
    assert isinstance(cluster, Site)
    assert (cluster.gpu_type, cluster.gpus_per_node, cluster.container) == found
    assert (cluster.connection, cluster.partition, cluster.account) == ("eos", "batch", "4711")
    assert (cluster.root, cluster.python) == ("/shared/ada/steptime-work", "python3.12")


def test_of_several_accounts_slurm_uses_its_own_unless_one_is_named(config, monkeypatch):
    surveyed(monkeypatch, "gpu:h100:8", accounts=("4711", "4712"))
    for name, asked in (("eos", []), ("nyx", ["--account", "4712"])):
        added = runner.invoke(app, ["cluster", "add", name, *asked])
        assert added.exit_code == 0, added.output
    assert (load_cluster("eos").account, load_cluster("nyx").account) == (None, "4712")
    shipped = runner.invoke(app, ["cluster", "add", "local"])
    assert "exists already: choose another name" in str(shipped.exception)


def test_a_person_is_told_why_a_value_is_asked_for_again(config, monkeypatch):
    surveyed(monkeypatch, "gpu:8")
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("steptime.cli.clusters.sys", terminal)
    typed = ["", "", "", "h1000", "h100", "", "", "none"]  # connection, partition, type thrice, account, …
    added = runner.invoke(app, ["cluster", "add", "eos"], input="\n".join(typed) + "\n")
    assert added.exit_code == 0, added.output
    assert "type of GPU: the login node does not show it, so it has to be typed" in added.stderr
    assert "unknown gpu-type 'h1000': did you mean 'h100'?" in added.stderr
    assert "what runs images (pyxis, bwrap, none) [pyxis]" in added.stderr
    cluster = load_cluster("eos")
    assert isinstance(cluster, Site)
    assert (cluster.gpu_type, cluster.account, cluster.container) == ("h100", "4711", "none")


@pytest.mark.long
def test_a_failed_check_is_exit_code_2_and_an_unknown_cluster_is_refused(config, monkeypatch):
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    file = config / "clusters" / "mini-slurm.yaml"
    checked = runner.invoke(app, ["cluster", "check", file.stem])
    assert checked.exit_code == 2
    assert (
        "✗ login: there is no Airflow on this machine to look up the connection 'mini_slurm'"
        in checked.stdout
    )
    unknown = runner.invoke(app, ["cluster", "check", "nowhere"])
    assert "unknown cluster 'nowhere'" in str(unknown.exception)
