"""Faults that users of similar systems have reported, named by their reports: they have to end well here."""

import asyncio
import subprocess

import asyncssh
import pytest

from steptime.clusters.base import CommandResult, JobState
from steptime.clusters.connections import Connection
from steptime.clusters.slurm.commands import AccountingUnavailable, SlurmCommands
from steptime.clusters.slurm.job_records import group_by_name, read_records, record_status
from steptime.clusters.slurm.ssh import LoginNode
from steptime.clusters.slurm.submit import error_for_refused_job, submit_command
from steptime.errors import OutOfReach, SubmitLimit, SystemFailure, UserError
from steptime.logs.reader import read_log


def line(state, *, exit_code="0", nodes="n1", reason="None", id="7"):
    """Return a line of squeue, or of sacct with an exit code such as `0:15`."""
    return f"{id}|{state}|{exit_code}|1700000000|1700000060|1700000100|{nodes}|job|{reason}|/shared/job|"


def slurm_that_answers(*, stdout="", stderr="", exit_code=0):
    """Return Slurm's commands, each of which ends like this."""

    async def run(_, **_options):
        return CommandResult(exit_code=exit_code, stdout=stdout, stderr=stderr)

    return SlurmCommands(run, cluster="eos", root="/shared")


STATES = {
    "nextflow 5298: a node that fails to start counts as running": (
        line("NODE_FAIL", exit_code="256"),
        JobState.FAILED,
        True,
    ),
    "reframe 3608: PREEMPTED counts as completed": (line("PREEMPTED"), JobState.FAILED, True),
    "batchtools 196: TIMEOUT counts as done": (line("TIMEOUT"), JobState.TIMED_OUT, False),
    "codalab 2391: COMPLETING counts as ended": (line("COMPLETING"), JobState.RUNNING, False),
    "burrmill 15: a launch that failed is held, and nobody says so": (
        line("PENDING", nodes="", reason="launch failed requeued held"),
        JobState.QUEUED,
        False,
    ),
    "nextflow 981: the log cannot be opened, and the job counts as submitted for ever": (
        line("FAILED", exit_code="53"),
        JobState.FAILED,
        False,
    ),
    "spur 618: a job waits, and Slurm gives no reason": (line("PENDING", nodes=""), JobState.QUEUED, False),
    "DataDesigner 892: a job held since its reservation was deleted has an unknown state": (
        line("RESV_DEL_HOLD", nodes=""),
        JobState.QUEUED,
        False,
    ),
    "parsl 2259: a word for a state is not the one that was looked for": (
        line("RUNNING"),
        JobState.RUNNING,
        False,
    ),
    "slurm: a state of a later release": (line("EXPEDITED_BY_9.0"), JobState.UNKNOWN, False),
}


@pytest.mark.parametrize("report", STATES)
def test_a_state_is_what_it_says(report):
    text, state, cluster_fault = STATES[report]
    [record] = read_records(text)
    status = record_status(record)
    assert (status.state, status.cluster_fault) == (state, cluster_fault)


def test_a_requeued_job_is_not_its_preempted_first_run():
    """MFC 1311: sacct shows PREEMPTED for the first run after the second has completed."""
    text = f"{line('PREEMPTED', exit_code='0:15')}\n{line('COMPLETED', exit_code='0:0')}"
    [[record]] = group_by_name(read_records(text)).values()
    assert record_status(record).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "text", ["", "\n", "\n\n", "\0", "slurm_load_jobs error: x", "7|", "|" * 9, "7" + "|" * 9]
)
def test_lines_without_a_job_are_none(text):
    """DIRAC 5421: "need more than 0 values to unpack"."""
    assert read_records(text) == []


async def test_a_job_is_found_in_whatever_partition_it_is(make_spec):
    """Nextflow 1151 and 7237: squeue is asked about one partition, and a site moves jobs to another."""
    words = []

    async def run(argv, **_):
        words.extend(argv)
        return CommandResult(exit_code=0, stdout="", stderr="")

    commands = SlurmCommands(run, cluster="eos", root="/shared")
    await commands.squeue(["job"])
    await commands.sacct("--name", ["job"], ["job"])
    words += submit_command(make_spec("job", "true"), root="/shared", folder="/shared/x")
    assert not [word for word in words if word.startswith(("-p", "--partition", "--clusters", "-M"))]


async def test_a_job_that_got_the_number_of_an_earlier_one_is_told_from_it():
    """submitit 1660: after a reset of Slurm's numbers sacct shows the end of another job."""
    answer = (
        f"{line('FAILED', exit_code='1:0').replace('|job|', '|other|')}\n{line('RUNNING', exit_code='0:0')}"
    )

    found = await slurm_that_answers(stdout=answer).sacct("--jobs", ["7"], ["job"])
    assert {name: [record.state for record in records] for name, records in found.items()} == {
        "job": ["RUNNING"]
    }


async def test_sacct_is_asked_about_many_jobs_in_parts_and_by_their_own_numbers():
    """slurm-pipeline 45: too many numbers in one command; snakemake 1227: sacct shows what began today;
    snakemake 2036: a task of an array has another number."""
    asked = []

    async def run(argv, **_):
        asked.append(argv)
        numbers = argv[-1].partition("=")[2].split(",")
        rows = [line("COMPLETED", exit_code="0:0", id=number) for number in numbers]
        return CommandResult(exit_code=0, stdout="\n".join(rows), stderr="")

    numbers = [str(number) for number in range(1, 1001)]
    found = await SlurmCommands(run, cluster="eos", root="/shared").sacct("--jobs", numbers, ["job"])
    assert [record.job_id for record in found["job"]] == numbers
    assert len(asked) == 3
    for argv in asked:
        assert sum(map(len, argv)) < 100_000
        assert "--starttime=now-60days" in argv
        assert argv[-2].startswith("--format=JobIDRaw,")


QUEUE_ERRORS = {
    "parsl 1588: the controller is away, and the job counts as running for ever": (
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    ),
    "fractal-server 2482: squeue fails, and the job counts as completed": "slurm_load_jobs error: Zero Bytes",
    "dpdispatcher 95: squeue fails, and the job counts as finished": "squeue: error: Socket timed out",
}


@pytest.mark.parametrize("report", QUEUE_ERRORS)
async def test_a_queue_that_does_not_answer_ends_no_job(report):
    with pytest.raises(OutOfReach):
        await slurm_that_answers(stderr=QUEUE_ERRORS[report], exit_code=1).squeue(["job"])


SBATCH = {
    "dask-jobqueue 209: a site's sbatch prints the number alone": ("15786755", "15786755"),
    "snakemake-executor-plugin-slurm 121: the cluster's name behind the number": ("815;eos", "815"),
    "dask-jobqueue 227: a site's sbatch speaks first": ("Job estimate: 3 units\n12 left\n815", "815"),
}


@pytest.mark.parametrize("report", SBATCH)
def test_the_number_of_a_job_is_found_in_what_sbatch_prints(report, make_spec, tmp_path):
    printed, number = SBATCH[report]
    for name, text in {"squeue": "", "sbatch": printed, "scontrol": ""}.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        stub.chmod(0o755)
    done = subprocess.run(
        submit_command(make_spec("job", "true"), root="/shared", folder=str(tmp_path)),
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    [record] = read_records(done.stdout)
    assert (record.job_id, record.state) == (number, "PENDING")


ACCOUNTING = {
    "snakemake-executor-plugin-slurm 38": "Slurm accounting storage is disabled",
    "snakemake-executor-plugin-slurm 5": "sacct: error: Unable to resolve db01: Name or service not known",
    "cluster-toolkit 6047": "sacct: error: Problem talking to the database: Connection refused",
}


@pytest.mark.parametrize("report", ACCOUNTING)
async def test_accounting_that_does_not_answer_ends_no_job(report):
    commands = slurm_that_answers(stderr=ACCOUNTING[report], exit_code=1)
    if "disabled" in ACCOUNTING[report]:
        assert await commands.sacct("--name", ["job"], ["job"]) == {}
        assert not commands.has_accounting
    else:
        with pytest.raises(AccountingUnavailable):
            await commands.sacct("--name", ["job"], ["job"])


async def test_an_old_slurm_is_named_by_its_own_words():
    """SkyPilot 8907: squeue lacks an option, and the cluster is torn down with the job still in it."""

    commands = slurm_that_answers(stderr="squeue: unrecognized option '--only-job-state'", exit_code=1)
    with pytest.raises(OutOfReach, match="squeue: unrecognized option"):
        await commands.squeue(["job"])


REFUSALS = {
    "sbatch: error: QOSMaxSubmitJobPerUserLimit": SubmitLimit,
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation": SystemFailure,
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying": SystemFailure,
    "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received": SystemFailure,
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination": UserError,
    "sbatch: error: Unable to allocate resources: Protocol authentication error": SystemFailure,
    "sbatch: error: lua: your project is out of hours": SystemFailure,
}


@pytest.mark.parametrize("said", REFUSALS)
def test_whose_fault_a_refused_submission_is(said):
    error = error_for_refused_job("job", "eos", CommandResult(exit_code=1, stdout="", stderr=said))
    assert type(error) is REFUSALS[said]


LOGS = {
    "pyxis 53": (
        "slurmstepd: error: pyxis:     Write failed because No space left on device\n"
        "slurmstepd: error: pyxis:     FATAL ERROR:Failed to write to output filesystem\n"
        "slurmstepd: error: pyxis: couldn't start container\n",
        "No space left on device",
    ),
    "pyxis 67": (
        "slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/cont.sqsh/latest "
        "returned error code: 401 Unauthorized\nslurmstepd: error: pyxis: couldn't start container\n",
        "401 Unauthorized",
    ),
    "docker's limit of pulls": (
        "slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/x returned error code: "
        "429 Too Many Requests\nslurmstepd: error: pyxis: couldn't start container\n",
        "429 Too Many Requests",
    ),
    "enroot 256": (
        "error: pyxis: failed to import docker image\n"
        "pyxis: could not remove squashfs /tmp/enroot_data/1000/19.0.squashfs: No such file or directory\n"
        "error: pyxis: couldn't start container\n",
        "pyxis could not start the container: failed to import docker image",
    ),
    "dagster 17868: a process that said nothing counts as a success": ("", "the log is empty"),
    "skypilot 8928: an exit code that is lost counts as a success": ("About to crash\n", "no training step"),
}


@pytest.mark.parametrize("report", LOGS)
def test_the_cause_in_a_log_is_named(report, tmp_path):
    text, cause = LOGS[report]
    (tmp_path / "log.out").write_text(text)
    fatal = [
        problem.message for problem in read_log(tmp_path / "log.out", max_steps=20).problems if problem.fatal
    ]
    assert cause in fatal[0]


@pytest.mark.long
@pytest.mark.parametrize("banner", [b"Exceeded MaxStartups\r\n", b"", b"Not allowed at this time\r\n"])
async def test_an_sshd_that_is_too_busy_is_no_refused_login(banner, monkeypatch):
    """asyncssh 55 and 456, NixOS infra 352: it is asked again, and then the cluster is out of reach."""
    calls = 0

    async def refuse(_, writer):
        nonlocal calls
        calls += 1
        writer.write(banner)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()

    async def connection(name):
        extra = {"host_key": key, "no_host_key_check": False, "conn_timeout": 2}
        port = server.sockets[0].getsockname()[1]
        return Connection(
            name=name, kind="ssh", host="127.0.0.1", port=port, login="a", password="b", extra=extra
        )

    node = LoginNode("site", connection)
    with pytest.raises(OutOfReach):
        await node.run(["true"], timeout_s=5)
    await node.close()
    server.close()
    assert calls > 1
