"""Lives of jobs as a login node sees them: each command with its options, and what it means to steptime.

The tales are kept in tests/golden/slurm. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/clusters/test_slurm_tales.py
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import assert_kept
from own_clock import waits_over_at_once

from steptime import waiting
from steptime.clusters.slurm import checks as slurm_checks
from steptime.clusters.slurm import cluster as slurm_backend
from steptime.clusters.slurm.survey import survey

from .scripted_slurm import NOW, ScriptedSlurm, sacct_line, squeue_line

pytestmark = pytest.mark.long


@pytest.fixture
def slurm(site, tmp_path):
    return ScriptedSlurm(site, tmp_path / "work")


@pytest.fixture
async def connect(slurm, make_slurm_config):
    """Yield a function that opens the cluster, with these fields changed; all are closed at the end."""
    opened = []

    def connect(**fields):
        config = make_slurm_config(**{"connection": "login", "work_dir": str(slurm.work_dir), **fields})
        opened.append(slurm_backend.connect(config, slurm.connections))
        return opened[-1]

    yield connect
    for cluster in opened:
        await cluster.__aexit__()


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the cluster's waits, which passes when a test says so and in long pauses."""
    waits_over_at_once(monkeypatch, waiting, slurm_backend)
    monkeypatch.setattr(slurm_backend, "_LOOK_S", 50)
    own = slurm_backend.time
    passing = SimpleNamespace(s=0.0, monotonic=lambda: own.monotonic() + passing.s)
    monkeypatch.setattr(slurm_backend, "time", passing)
    return passing


def spec_of(make_spec, slurm, **fields):
    folder = f"{slurm.work_dir}/experiments/night"
    spec = make_spec("night", "true", slots=2, time_limit_s=61, files={"run.json": "{}"}, **fields)
    return spec.model_copy(update={"directory": folder, "log_path": f"{folder}/logs/100%.out"})


async def test_a_job_from_its_submission_to_its_end(slurm, connect, make_spec, clock):
    folder = f"{slurm.work_dir}/experiments/night"
    spec = spec_of(make_spec, slurm, nodes=("node1", "node2"))
    waits = squeue_line(7, "PENDING", reason="Resources", directory=folder)
    runs = squeue_line(7, "RUNNING", started=NOW, nodes="node[1-2]", directory=folder)
    ended = {"name": "night", "submitted": NOW - 100, "started": NOW, "ended": NOW + 60, "directory": folder}
    tell = slurm.tell
    cluster = connect()
    await tell("no job of that name", cluster.find("night"))
    job = await tell(
        "submit: the queue shows it, and it is released",
        cluster.submit(spec),
        squeue=["", "", waits],
        sbatch="Welcome\n7;mini\n",
        sinfo="node3|drained|bad\n",
    )
    slurm.show_files()
    await tell("submit again", cluster.submit(spec), squeue=waits)
    assert await tell("find", cluster.find("night"), squeue=runs) == job
    await tell("poll: it waits", cluster.poll(["night"]), squeue=waits)
    await tell("poll: it runs", cluster.poll(["night"]), squeue=runs)
    await tell("poll: squeue does not answer", cluster.poll(["night"]), squeue=(1, "slurm_load_jobs error"))
    await tell("poll: it left the queue", cluster.poll(["night"]))
    clock.s += 100
    (Path(folder) / "ended.json").write_text(
        json.dumps({"job_id": "7", "exit_code": 3, "state": "RUNNING", "started_at": NOW, "ended_at": NOW})
    )
    await tell("poll: only its script knows the end", connect().poll(["night"]), sacct=(1, "away"))
    of_sacct = {"nodes": "node[1-2]", **ended}
    await tell(
        "poll: the accounting, by the id, knows the end",
        cluster.poll(["night"]),
        sacct=["", sacct_line(7, "COMPLETED", **of_sacct)],
    )
    await tell("poll: what has ended is not asked for again", cluster.poll(["night"]))
    failed = sacct_line(7, "NODE_FAIL", exit="1:0", **of_sacct)
    await tell(
        "poll: a node failed",
        connect().poll(["night"]),
        sacct=failed,
        sinfo="node2|down*|no ping\nnode9|down|\n",
    )
    await tell("poll: a node failed, but which?", connect().poll(["night"]), sacct=failed, sinfo=1)
    assert_kept("slurm/life.txt", slurm.told())


async def test_a_job_that_is_cancelled(slurm, connect, make_spec, clock):
    folder = f"{slurm.work_dir}/experiments/night"
    spec = spec_of(make_spec, slurm)
    line = {"started": NOW, "nodes": "node1", "directory": folder}
    runs = squeue_line(7, "RUNNING", **line)
    clears, gone = squeue_line(7, "COMPLETING", **line), squeue_line(7, "CANCELLED", **line)
    tell = slurm.tell
    cluster = connect()
    await cluster_has(tell, cluster, spec, runs)
    await tell("cancel", cluster.cancel("night"), squeue=[runs, clears, gone])
    await tell(
        "cancel: it has just ended",
        cluster.cancel("night"),
        squeue=[runs, gone],
        scancel=(1, "scancel: error: Kill job error on job id 7: Invalid job id specified"),
    )
    await tell("cancel: Slurm refuses", cluster.cancel("night"), squeue=runs, scancel=(1, "scancel: no"))
    await tell("cancel: it stays", cluster.cancel("night"), squeue=clears)
    await tell(
        "cancel: squeue is empty, the accounting has it",
        cluster.cancel("night"),
        squeue="",
        sacct=[sacct_line(7, "RUNNING", **line), sacct_line(7, "CANCELLED by 0", **line)],
    )
    await tell("cancel: nothing shows it for a minute", cluster.cancel("night"), sacct=(1, "away"))
    assert_kept("slurm/cancelled.txt", slurm.told())


async def cluster_has(tell, cluster, spec, line):
    await tell("submit", cluster.submit(spec), squeue=["", "", line], sbatch="7\n")


async def test_what_a_poll_puts_right(slurm, connect, make_spec, clock):
    folder = f"{slurm.work_dir}/experiments/night"
    held = squeue_line(7, "PENDING", reason="JobHeldUser", directory=folder)
    later = squeue_line(8, "PENDING", reason="JobHeldUser", submitted=NOW - 50, directory=folder)
    ended = squeue_line(9, "CANCELLED", submitted=NOW - 40, directory=folder)
    elsewhere = squeue_line(6, "RUNNING", submitted=NOW - 500, directory="/home/other")
    tell = slurm.tell
    cluster = connect()
    await cluster_has(tell, cluster, spec_of(make_spec, slurm), held)
    await tell(
        "poll: its release was lost, and there is a second one",
        cluster.poll(["night"]),
        squeue=[later + ended + held + elsewhere, "7|Unknown|\n8|Unknown|\n"],
    )
    await tell("poll: a person holds it", cluster.poll(["night"]), squeue=[held, f"7|{NOW}|\n"])
    await tell(
        "poll: Slurm refuses both",
        cluster.poll(["night"]),
        squeue=[held + later, "7|N/A|\n"],
        scancel=(1, "scancel: no"),
        scontrol=(1, "scontrol: no"),
    )
    await tell("poll: a name that Slurm never had", cluster.poll(["other"]))
    lost = sacct_line(7, "PENDING", directory=folder)
    await tell("poll: only the accounting has it", cluster.poll(["night"]), sacct=lost)
    clock.s += 601
    await tell("poll: ten minutes later", cluster.poll(["night"]), sacct=lost)
    assert_kept("slurm/put-right.txt", slurm.told())


async def test_a_job_that_slurm_refuses(slurm, connect, make_spec, clock):
    spec, tell = spec_of(make_spec, slurm, nodes=("node1",)), slurm.tell
    taken = squeue_line(7, "PENDING", directory=f"{slurm.work_dir}/experiments/night")
    cluster = connect(extra_options=["--qos=benchmark"])
    await tell("its node is out of order", cluster.submit(spec), sinfo="node1|drained|bad DIMM: slot 3|4\n")
    says = "sbatch: error: Batch job submission failed: "
    for what in ("Invalid qos specification", "AssocMaxSubmitJobLimit", "Zero Bytes were transmitted"):
        await tell(f"sbatch: {what}", cluster.submit(spec), sbatch=(1, f"{says}{what}"))
    await tell("sbatch is missing", cluster.submit(spec), sbatch=(127, "sh: 1: sbatch: not found"))
    await tell(
        "it is not released", cluster.submit(spec), squeue=["", "", taken], sbatch="7", scontrol=(1, "no")
    )
    other = taken.replace("|0:0|", "|none|")
    await tell("squeue prints it otherwise", cluster.submit(spec), squeue=["", other, other], sbatch="7")
    await tell("squeue lacks it", cluster.submit(spec), sbatch="7")
    await tell("squeue is missing", connect().poll(["other"]), squeue=(127, "squeue: not found"))
    await tell(
        "no accounting",
        cluster.poll(["other"]),
        sacct=(1, "Slurm accounting storage is disabled"),
    )
    await tell("the clock cannot be read", cluster._clock(), date="Monday")
    assert_kept("slurm/refused.txt", slurm.told())


SINFO = """batch*|up|idle|3|gpu:h100:8(S:0-1)
batch*|up|drained*|1|gpu:h100:8
debug|up|mixed|2|(null)
old|down|idle|9|gpu:a100:4
"""
ASSOCIATIONS = "llm|10|20||||cpu=9|\nnight|||||||\n"


async def test_what_a_login_node_shows_of_its_cluster(slurm, connect, monkeypatch):
    """What the checks find otherwise is in test_cluster_check."""
    monkeypatch.setattr(slurm_checks, "time", SimpleNamespace(time=lambda: NOW + 60.0))
    answers = {"sinfo": SINFO, "sacctmgr": ASSOCIATIONS, "id": "maria\n", "uname": "login2\n"}

    async def checks(cluster):
        return {check.name: await check.look() for check in cluster.checks()}

    cluster = connect(gpu_type="h100", account="llm")
    await slurm.tell("checks", checks(cluster), **answers)
    pyxis = "    --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
    surveyed = await slurm.tell("survey", survey("login", slurm.connections), **answers, srun=pyxis)
    assert surveyed.containers[0] == "pyxis"
    assert surveyed.suggested_partition.name == "batch"
    of_slurm = surveyed.model_dump(include={"where", "partitions", "accounts"})
    calls = slurm.tale[-1].partition("-> ")[0]  # the rest of what came is this machine's
    slurm.tale[-1] = calls + "\n".join(f"-> {name}: {value}" for name, value in of_slurm.items())
    assert_kept("slurm/site.txt", slurm.told())
