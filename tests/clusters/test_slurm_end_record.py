"""The record that a job's script writes of its end on the real Slurm, for when Slurm does not answer."""

import json
from pathlib import Path

import pytest
from staged import staged_files

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.cluster import connect
from steptime.clusters.slurm.node_check import REFUSED, REPORT

from .conftest import end_of, eventually
from .login_node import LoginNode

pytestmark = pytest.mark.slurm


_REFUSES = json.dumps({"nodes": [{"node": "node1", "faults": ["it burns"]}]})
_GRACEFUL = "trap 'exit 0' TERM; touch begun; while :; do sleep 0.1; done"
_SCRIPTS = {
    "good": "exit 0",
    "bad": "exit 3",
    "refused": f"echo '{_REFUSES}' >{REPORT}; exit {REFUSED}",
    "signalled": "kill -SEGV $$",
    "cancelled": _GRACEFUL,
    "limited": _GRACEFUL,
    "killed": _GRACEFUL,
    "disk-full": "exit 0",
}
"""By the experiment's name, what the only rank of each job does."""

_WRITTEN = {
    "good": (0, "RUNNING"),
    "bad": (3, "RUNNING"),
    "refused": (REFUSED, "RUNNING"),
    "signalled": (139, "RUNNING"),
    "killed": None,
    "disk-full": None,
}
"""The exit code and Slurm's state in each record, except for jobs that Slurm itself ends."""

_ACCOUNTING = {
    "in the accounting it is RUNNING": '$real "$@" | sed -E "s/[|](COMPL|FAIL|CANC|TIME)[^|]*[|]/|RUNNING|/"',
    "the accounting does not have it": "exit 0",
    "there is no accounting": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
    "the accounting does not answer: sacct failed on mini: down": "echo down >&2; exit 1",
}
"""A sacct that is stale, empty, missing or does not answer, by what steptime says of it."""

_CONCLUDED = {
    "good": (JobState.SUCCEEDED, 0, False),
    "bad": (JobState.FAILED, 3, False),
    "refused": (JobState.FAILED, REFUSED, True),
}
"""State, exit code, and whether it is the cluster's fault; without the accounting all others stay open."""

_SETTLED = {
    "good": JobState.SUCCEEDED,
    "bad": JobState.FAILED,
    "refused": JobState.FAILED,
    "signalled": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
    "limited": JobState.TIMED_OUT,
    "killed": JobState.FAILED,
    "disk-full": JobState.SUCCEEDED,
}


@pytest.fixture
def node(slurm_of_session, tmp_path):
    """Yield a login node of this test's own."""
    node = LoginNode(slurm_of_session, tmp_path / "login")
    yield node
    node.stop()


@pytest.fixture
def spec_of(make_slurm_config, make_result, tmp_path):
    """Return a function that makes the job of a name, with the script of a training."""

    def make(name):
        python = tmp_path / f"python-{name}"
        python.write_text(f"#!/bin/bash\n{_SCRIPTS[name]}\n")
        python.chmod(0o755)
        staged = staged_files(python, tmp_path)
        run = make_result(gpus=1).run.model_copy(update={"experiment": name})
        config = make_slurm_config(gpu_option="none", exclusive=False)
        return job_spec(run, staged, config, identity=name, started=0)

    return make


def _written(job):
    path = Path(job.directory) / "ended.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    assert record["job_id"] == job.job_id
    return record["exit_code"], record["state"]


async def test_what_the_scripts_write_tells_how_their_jobs_ended(
    node,
    slurm_of_session,
    spec_of,
    make_slurm_config,
    hasten_limit,
    tmp_path,
    monkeypatch,
):
    """The record decides once the controller has forgotten a job and the accounting is not available."""
    jobs = {}
    async with connect(make_slurm_config(), node.connections) as cluster:
        for name in _SCRIPTS:
            spec = spec_of(name)
            if name == "disk-full":  # blocks the record as a full disk would
                (Path(spec.directory) / "ended.json.new").mkdir(parents=True)
            jobs[name] = await cluster.submit(spec)
        for name in ("cancelled", "limited", "killed"):
            await eventually((Path(jobs[name].directory) / "begun").exists)
        await cluster.cancel(jobs["cancelled"].name)
        hasten_limit(jobs["limited"])
        slurm_of_session.command("scancel", "--batch", "--signal=KILL", jobs["killed"].job_id)
        settled = {name: await end_of(cluster, job.name) for name, job in jobs.items()}
    assert {name: status.state for name, status in settled.items()} == _SETTLED
    assert {name: _written(jobs[name]) for name in _WRITTEN} == _WRITTEN
    # Slurm may be too busy to answer a job that it ends: then the record has no state, which decides nothing.
    # Nor does the exit code decide: srun has ended with 255 at the limit, although its rank ended with 0.
    ended_by_slurm = [_written(jobs[name]) for name in ("cancelled", "limited")]
    assert {record and record[0] for record in ended_by_slurm} <= {0, 255}
    assert {record and record[1] for record in ended_by_slurm} <= {"COMPLETING", ""}
    exit_code, state = ended_by_slurm[1] or (None, "")
    limited_end = f"its script ended with exit code {exit_code}" + (f" while it was {state}" if state else "")
    assert "how this job ended could not be written to" in Path(jobs["disk-full"].log_path).read_text()
    killed = jobs["killed"]
    others = (Path(jobs["good"].directory) / "ended.json").read_text()
    (Path(killed.directory) / "ended.json").write_text(others)  # of another job: must not count

    node.command("squeue", "exit 0")  # as the real one after MinJobAge
    for says, sacct in _ACCOUNTING.items():
        node.command("sacct", sacct)
        async with connect(make_slurm_config(), node.connections) as cluster:
            polled = await cluster.poll([job.name for job in jobs.values()])
        statuses = dict(zip(jobs, polled.values(), strict=True))
        open_ = {name: status.reason for name, status in statuses.items() if status.state is JobState.RUNNING}
        concluded = {
            name: (status.state, status.exit_code, status.cluster_fault)
            for name, status in statuses.items()
            if name not in open_
        }
        assert concluded == _CONCLUDED, says
        for status in (statuses["good"], statuses["bad"]):
            assert status.started_at
            assert status.ended_at
            assert status.started_at <= status.ended_at <= status.started_at + 60
        for reason in open_.values():
            assert reason.startswith("it has left the queue, and neither the accounting nor its script has")
            assert says in reason
        assert limited_end in open_["limited"]

    # The wait ends when the patience is over.
    reads = []
    async with connect(make_slurm_config(patience_h=1e-6), node.connections) as cluster:

        async def read(path):
            reads.append(path)
            return await cluster._node.read(path, 0, 1 << 20)

        monkeypatch.setattr(cluster, "read", read)
        for _ in range(2):
            reads.clear()
            assert (await cluster.poll([killed.name]))[killed.name].state is JobState.RUNNING
        assert reads == [f"{killed.directory}/ended.json"]
        assert await cluster.find(killed.name) == killed
        await cluster.cancel(killed.name)
        limited = jobs["limited"]
        over = await cluster.poll([limited.name, "nobody"])
    assert {status.state for status in over.values()} == {JobState.UNKNOWN}
    assert [status.reason for status in over.values()] == [
        f"Slurm took it as job {limited.job_id}, and its end is not known: the accounting does not "
        f"answer: sacct failed on mini: down; {limited_end}",
        "mini has no job of the name nobody",
    ]
    note = tmp_path / "clusters/mini/jobs" / killed.name / "job.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"time_limit_s": 1}))
    async with connect(make_slurm_config(patience_h=1e-6), node.connections) as cluster:
        assert (await cluster.poll([killed.name]))[killed.name].state is JobState.UNKNOWN
