"""What `steptime cluster check` finds on a real Slurm in which each fault is made on purpose."""

from dataclasses import replace
from pathlib import Path

import pytest
from called import has_python_311
from slurm_faults import stop_daemon
from slurm_service import MiniSlurm

from steptime.clusters import config as config_module
from steptime.clusters.base import CommandResult
from steptime.clusters.checks import (
    CheckFailedError,
    CheckResult,
    NotApplicableError,
    clock_difference,
)
from steptime.clusters.config import load_cluster
from steptime.clusters.connections import no_connections
from steptime.clusters.slurm import survey as survey_module
from steptime.clusters.slurm.checks import slurm_checks
from steptime.clusters.slurm.commands import SlurmCommands
from steptime.clusters.slurm.survey import listed_gpu_type, survey
from steptime.plug_points import CONTAINERS
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.cluster_check import check_cluster, runs_to_check

from .conftest import MakeSlurmConfig
from .login_node import LoginNode
from .ssh_site import known

STAND_INS = Path(__file__).parents[1] / "stand_ins"
OF_SLURM = pytest.mark.slurm
H100 = "batch*|up|idle|8|gpu:h100:8(S:0-1)"


async def outcomes(config, connections, runs=()):
    """Check a cluster; return the outcomes by name, which are reported in the same order."""
    reported = []
    checks = await check_cluster(config, connections, runs, reported.append)
    assert list(checks) == reported
    return {outcome.check: outcome for outcome in checks}


def failed(checks):
    return {name for name, outcome in checks.items() if outcome.result is CheckResult.FAILED}


@pytest.fixture
def node(slurm_of_session, tmp_path):
    """Yield a login node of the mini Slurm whose programs a test may replace."""
    node = LoginNode(slurm_of_session, tmp_path / "login")
    yield node
    node.stop()


def a_run(gpu_type="h100", **options):
    return plan(PlanRequest(workload="llama3.1", size="8b", gpu_type=gpu_type, **options)).runs[0]


async def test_what_does_not_apply_to_this_machine_is_told_with_the_reason():
    checks = await outcomes(load_cluster("local"), no_connections, (a_run(gpus="8"),))
    assert str(checks["login"]) == "– login: the cluster is this machine"


@OF_SLURM
async def test_a_whole_cluster_passes(
    make_slurm_config: MakeSlurmConfig, node: LoginNode, tmp_path: Path
) -> None:
    config = make_slurm_config(container="bwrap", partition="batch")
    tiny = plan(PlanRequest(workload="llama3.1", gpus="1")).runs[0]
    checks = await outcomes(config, node.connections, (tiny,))
    assert failed(checks) == set()
    assert checks["Slurm"].message == "partition batch: 8 of 8 nodes can be used"
    assert {name for name, outcome in checks.items() if outcome.result is CheckResult.NOT_APPLICABLE} == {
        *("GPUs", "images", "Hugging Face cache")
    }
    assert str(checks["container"]) == "✓ container: bwrap works"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".cluster-check")] == []


@OF_SLURM
async def test_a_host_with_another_key_blocks_all_other_checks(
    make_slurm_config: MakeSlurmConfig, node: LoginNode
) -> None:
    other_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    checks = await outcomes(make_slurm_config(), known({"mini_slurm": node.login(host_key=other_key)}))
    assert "shows a key that is not trusted" in checks["login"].message
    assert failed(checks) == {"login"}
    assert checks["work_dir"].message == "cannot be checked before login"


FAULTS = {
    "work_dir": (
        {"work_dir": "/proc/steptime"},
        {},
        "could not be written",
        "let the login's user create and rename files in /proc/steptime",
    ),
    "container": ({"container": "bwrap"}, {"bwrap": "exit 127"}, "bwrap does not work", "install bwrap"),
    "clock": ({}, {"date": "echo $(($($real +%s) + 600))"}, "s ahead of this machine's", "NTP"),
    "python": ({"python": "python2"}, {}, "has no python2", ""),
    "Slurm": (
        {"partition": "gone"},
        {},
        "no partition 'gone'; partitions: batch, preempt, preempt-cancel",
        "change partition:",
    ),
    "submit limits": ({"account": "nobody"}, {}, "has no account 'nobody'; accounts: root", "account:"),
}
"""By check: fields of the cluster's file, programs of the login node, the finding and its remedy."""


@OF_SLURM
@pytest.mark.parametrize("check", FAULTS)
async def test_each_fault_is_found_by_its_check(
    make_slurm_config: MakeSlurmConfig, node: LoginNode, check: str
) -> None:
    fields, programs, words, remedy = FAULTS[check]
    for name, script in programs.items():
        node.command(name, script)
    checks = await outcomes(make_slurm_config(**fields), node.connections)
    assert failed(checks) == {check}
    assert words in checks[check].message
    assert remedy in checks[check].remedy


SINFO = """\
batch*|up|idle|6|gpu:h100:8(S:0-1),nvme:1
batch*|up|drained|2|gpu:h100:8
batch*|up|idle*|1|gpu:h100:8
old|up|allocated|3|gpu:a100:4
mixed|up|idle|2|gpu:8
closed|inact|idle|4|gpu:h100:8
broken|up|down|5|(null)
broken|up|failing|1|(null)
"""
NO_DEFAULT = SINFO.replace("*|up", "|up")
LIMITS = "team|4|||12:00:00|gres/gpu=64||\nother|||||||9\nteam|4|||12:00:00|gres/gpu=64||\n"
EVERY = "batch, broken, closed, mixed, old"
FILE = "config/clusters/mini.yaml"
FINDINGS = [
    # the check, fields of the cluster's file, what the login node prints instead; what is found, the remedy
    ("Slurm", {}, {}, "partition batch: 6 of 9 nodes can be used", None),
    ("Slurm", {"partition": "old,batch"}, {}, "partition batch, old: 9 of 12 nodes can be used", None),
    (
        *("Slurm", {"partition": "batch,gone,lost"}, {}),
        f"Slurm shows this login no partition 'gone, lost'; partitions: {EVERY}",
        f"change partition: in {FILE}",
    ),
    (
        *("Slurm", {}, {"sinfo": NO_DEFAULT}),
        f"Slurm has no default partition, and the file sets no partition; partitions: {EVERY}",
        f"write partition: in {FILE}",
    ),
    (
        *("Slurm", {"partition": "broken"}, {}),
        "no node of partition broken can be used now (6 nodes: down, failing)",
        "ask the cluster's administrators ('sinfo -R' shows the reasons), or name another partition",
    ),
    (
        *("Slurm", {"partition": "closed"}, {}),
        "no node of partition closed can be used now (4 nodes: idle)",
        "ask the cluster's administrators ('sinfo -R' shows the reasons), or name another partition",
    ),
    ("GPUs", {}, {}, "gpu_type is cpu: jobs use no GPUs", ""),
    (
        *("GPUs", {"gpu_type": "h100", "gpu_option": "none"}, {}),
        *("gpu_option is none: Slurm gives whole nodes and counts no GPUs", ""),
    ),
    ("GPUs", {"gpu_type": "h100"}, {}, "8 × h100 a node, as expected (h100)", None),
    ("GPUs", {"gpu_type": "h100", "gpus_per_node": 8}, {}, "8 × h100 a node, as expected (h100)", None),
    (
        *("GPUs", {"gpu_type": "h100", "gpus_per_node": 9, "partition": "old,batch"}, {}),
        *("gpus_per_node is 9, but the nodes have 4 × a100, 8 × h100", f"write gpus_per_node: 8 in {FILE}"),
    ),
    (
        *("GPUs", {"gpu_type": "h100", "partition": "old,batch"}, {}),
        *("4 × a100, 8 × h100 a node, as expected (h100)", None),
    ),
    (
        *("GPUs", {"gpu_type": "h100", "partition": "old"}, {}),
        "gpu_type is h100, but the nodes have 4 × a100",
        f"change gpu_type (a key of config/gpus.yaml) or partition in {FILE}",
    ),
    (
        *("GPUs", {"gpu_type": "h100", "partition": "mixed"}, {}),
        f"nodes have 8 × gpu, and Slurm does not say of which type: with node_check in {FILE} each job "
        "checks it before the training",
        "",
    ),
    (
        *("GPUs", {"gpu_type": "h100", "partition": "broken"}, {}),
        "the nodes of the partition have no GPUs in Slurm (GRES 'gpu')",
        f"name a partition with GPUs, or write gpu_option: none in {FILE} if the site has no GRES",
    ),
    (
        *("submit limits", {}, {}),
        "account team: MaxJobs 4, MaxWall 12:00:00, GrpTRES gres/gpu=64; account other: GrpSubmitJobs 9",
        None,
    ),
    ("submit limits", {"account": "other"}, {}, "account other: GrpSubmitJobs 9", None),
    (
        *("submit limits", {"account": "mine"}, {}),
        "user ada has no account 'mine'; accounts: other, team",
        f"change account: in {FILE}, or ask for that account",
    ),
    ("submit limits", {}, {"sacctmgr": "a|||||||\nb|||||||\n"}, "none for user ada (a, b)", None),
    (
        *("submit limits", {}, {"sacctmgr": ""}),
        *("the accounting has no entry for user ada, so it sets no limits", ""),
    ),
    ("accounting", {}, {}, "sacct answers", None),
    ("login", {}, {}, "ada on login1, by connection 'mini_slurm'", None),
]
"""The remedy is None for what passes, and empty for what does not apply."""


@pytest.mark.parametrize(("check", "fields", "printed", "found", "remedy"), FINDINGS)
async def test_each_finding_of_slurm(
    make_slurm_config,
    check,
    fields,
    printed,
    found,
    remedy,
):
    prints = {
        "sinfo": SINFO,
        "sacctmgr": LIMITS,
        "id": "ada\n",
        "sh": "ada on login1\n",
        "sacct": "",
    } | printed

    async def run(command, **_):
        return CommandResult(exit_code=0, stdout=prints[command[0]], stderr="")

    async def clock():
        return 0.0

    config = make_slurm_config(**fields)
    checks = slurm_checks(config, run, SlurmCommands(run, cluster="mini", root="/runs"), clock)
    [look] = [one.look for one in checks if one.name == check]
    try:
        told, advice = await look(), None
    except CheckFailedError as error:
        told, advice = str(error), error.remedy
    except NotApplicableError as error:
        told, advice = str(error), ""
    assert (told, advice) == (found, remedy)


@pytest.mark.parametrize(("cluster_time", "way"), [(1600.0, "600 s ahead of"), (400.0, "600 s behind")])
def test_a_clock_may_be_wrong_in_both_directions(cluster_time, way):
    with pytest.raises(CheckFailedError, match=f"the cluster's clock is {way} this machine's"):
        clock_difference(cluster_time, 1000.0, at_most_s=60)
    assert clock_difference(cluster_time, cluster_time + 5, at_most_s=60) == "5 s behind this machine's clock"
    assert clock_difference(999.0, 999.9, at_most_s=60) == "it agrees with this machine's clock"


@OF_SLURM
async def test_a_mistyped_option_of_sbatch_is_found_before_anything_is_submitted(
    make_slurm_config: MakeSlurmConfig, node: LoginNode
) -> None:
    two, outcome = plan(PlanRequest(workload="llama3.1", gpus="1,2")).runs[::-1]
    config = make_slurm_config(container="bwrap", extra_options=["--qso=high"])
    checks = await outcomes(config, node.connections, (two, outcome))
    assert failed(checks) == {"placement"}
    assert checks["placement"].message.startswith(f"{outcome.label} of "), "the smallest is tested"
    assert "would be refused: sbatch: unrecognized option '--qso=high'" in checks["placement"].message
    assert "extra_options" in checks["placement"].remedy


@OF_SLURM
async def test_an_accounting_that_is_away_fails_and_one_that_is_not_kept_does_not(
    make_slurm_config: MakeSlurmConfig, node: LoginNode, mini_slurm: MiniSlurm
) -> None:
    node.command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    checks = await outcomes(make_slurm_config(), node.connections)
    assert failed(checks) == set()
    assert checks["accounting"].message.startswith("this Slurm has no accounting")

    stop_daemon(mini_slurm.home, "slurmdbd", kill=False)
    checks = await outcomes(make_slurm_config(), mini_slurm.connections)
    assert failed(checks) == {"accounting", "submit limits"}
    assert "sacct failed on mini" in checks["accounting"].message


@OF_SLURM
async def test_images_are_looked_for_in_their_registry_and_nothing_is_fetched(
    make_slurm_config: MakeSlurmConfig, node: LoginNode, tmp_path: Path
) -> None:
    node.command("sinfo", f"echo '{H100}'")
    (node.bin / "enroot").symlink_to(STAND_INS / "enroot")
    config = make_slurm_config(gpu_type="h100", container="bwrap")
    checks = await outcomes(config, node.connections, (a_run(),))
    assert failed(checks) <= {"placement"}  # the mini Slurm has no GPUs of that type
    assert "its registry has docker://nvcr.io#nvidia/nemo" in checks["images"].message
    assert checks["GPUs"].message == "8 × h100 a node, as expected (h100)"
    assert not (tmp_path / "images").exists()

    (node.bin / "fault").write_text("unauthorized")
    checks = await outcomes(config, node.connections, (a_run(),))
    assert "the registry refused the login" in checks["images"].message

    checks = await outcomes(make_slurm_config(gpu_type="h100"), node.connections, (a_run(),))
    assert "container is none, and recipes for h100 run in images" in checks["container"].message
    assert "(pyxis, apptainer, bwrap)" in checks["container"].remedy


@OF_SLURM
async def test_a_login_node_shows_what_its_cluster_file_needs(
    node: LoginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        **CONTAINERS.built_in,
        "acmebox": CONTAINERS.built_in["bwrap"],
    }  # as an installed package adds one
    for module in (config_module, survey_module):
        monkeypatch.setattr(module, "CONTAINERS", replace(CONTAINERS, built_in=others))
    node.command("sinfo", f"echo 'debug|up|idle|1|(null)'; echo '{H100}'")
    seen = await survey("mini_slurm", node.connections)
    assert seen.suggested_partition is not None
    assert seen.suggested_partition.name == "batch"
    assert listed_gpu_type(seen.suggested_partition) == "h100"
    assert "root" in seen.accounts
    assert seen.containers == ("bwrap", "acmebox")
    assert seen.pythons[0] == "python3.11"
    assert seen.folders


@pytest.mark.skipif(not has_python_311(), reason="the trainer's packages need a Python 3.11")
async def test_a_local_cluster_passes(make_config, tmp_path):
    tiny = plan(PlanRequest(workload="llama3.1", gpus="1")).runs[0]
    assert failed(await outcomes(make_config(), known({}), (tiny,))) == set()

    (tmp_path / "file").touch()
    checks = await outcomes(make_config(work_dir=str(tmp_path / "file" / "work"), gpu_type="h100"), known({}))
    assert failed(checks) >= {"work_dir", "GPUs"}
    assert "let the login's user create and rename files" in checks["work_dir"].remedy


@pytest.mark.long
async def test_a_runai_cluster_without_its_project_or_secret_is_named(
    make_runai_config, runai_connections, runai_server
):
    checks = await outcomes(make_runai_config(project="gone"), runai_connections)
    assert failed(checks) == {"project"}
    assert "shows no project 'gone'" in checks["project"].message

    async def wrong(name):
        return replace(await runai_connections(name), password="wrong")

    checks = await outcomes(make_runai_config(), wrong)
    assert failed(checks) == {"login"}
    assert "wrong" not in str(checks["login"])

    (found_whole,) = [await outcomes(make_runai_config(), runai_connections)]
    assert failed(found_whole) == set()
    assert found_whole["clock"].result is CheckResult.OK


def test_without_a_workload_a_check_is_about_all_that_fits(make_config):
    config = make_config().model_copy(update={"name": "local"})
    runs = runs_to_check(config, None)
    assert {run.recipe.gpu_type for run in runs} == {"cpu"}
    assert len(runs) > 1
    assert [run.recipe.workload for run in runs_to_check(config, "llama3.1")] == ["llama3.1-25.04"]
