"""Faults of a real Slurm: lost replies, dead daemons, clashing names, and values with special characters."""

import asyncio
import getpass
import shlex
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import slurm_faults

from steptime.clusters.base import JobState
from steptime.clusters.slurm import cluster as cluster_module
from steptime.clusters.slurm.cluster import connect
from steptime.clusters.slurm.commands import SlurmCommands
from steptime.errors import OutOfReach, SubmitLimit, SystemFailure, UserError

from .conftest import end_of, eventually
from .login_node import LoginNode

pytestmark = pytest.mark.slurm


@pytest.fixture
def node(slurm_of_session, tmp_path):
    """Yield a login node of this test's own."""
    node = LoginNode(slurm_of_session, tmp_path / "login")
    yield node
    node.stop()


@pytest.fixture
async def behind(node, make_slurm_config, slurm_of_session):
    """Yield the mini Slurm behind that login node."""
    async with connect(make_slurm_config(), node.connections) as cluster:
        yield cluster
    slurm_of_session.command("scancel", "--me")


def jobs_of(slurm, name):
    """Return the states of the controller's jobs of that name, ordered by id."""
    listed = slurm.command("squeue", "-h", "--states=all", f"--name={name}", "-o", "%A %T")
    return [line.split()[1] for line in sorted(listed.splitlines(), key=lambda line: int(line.split()[0]))]


async def test_a_job_beyond_a_limit_may_be_submitted_later_unless_it_can_never_be(
    slurm_of_session, behind, make_gated, make_spec
):
    """`AccountingStorageEnforce=limits` enforces a limit on the number of jobs and one on their time."""
    conf, home = slurm_of_session.layout.slurm_conf, slurm_of_session.home
    before = conf.read_text()

    def restart_controller(text):
        conf.write_text(text)
        slurm_faults.stop_daemon(home, "slurmctld", kill=False)
        slurm_faults.start_daemon(home, "slurmctld")

    def modify(text):
        slurm_of_session.command("sacctmgr", "-i", "modify", *text.split())

    restart_controller(f"{before}AccountingStorageEnforce=limits,qos\n")
    try:
        modify(f"user {getpass.getuser()} set MaxSubmitJobs=1")
        second, first = make_spec("second-at-limit", "true"), make_gated("first-at-limit")
        await behind.submit(first.spec)
        with pytest.raises(SubmitLimit, match="no more jobs for now, and refused second-at-limit: AssocMax"):
            await behind.submit(second)
        assert await behind.find(second.name) is None
        await eventually(lambda: first.pid)
        first.let_go()
        await end_of(behind, first.spec.name)
        await behind.submit(second)
        assert (await end_of(behind, second.name)).state is JobState.SUCCEEDED
        assert jobs_of(slurm_of_session, second.name) == ["COMPLETED"]

        modify(f"user {getpass.getuser()} set MaxSubmitJobs=-1")
        modify("qos normal set MaxWall=1 Flags=DenyOnLimit")
        with pytest.raises(UserError, match="QOSMaxWallDurationPerJobLimit"):
            await behind.submit(make_spec("long", "true", time_limit_s=600))
    finally:
        restart_controller(before)
        modify(f"user {getpass.getuser()} set MaxSubmitJobs=-1")
        modify("qos normal set MaxWall=-1 Flags=-1")


async def test_a_job_that_was_taken_though_sbatch_failed_is_found(node, behind, slurm_of_session, make_spec):
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    node.command("sbatch", f'$real "$@" >/dev/null; echo "{said}" >&2; exit 1')
    job = await behind.submit(make_spec("taken", "echo ran >> count"))
    assert (await end_of(behind, "taken")).state is JobState.SUCCEEDED
    assert job == await behind.find("taken") == await behind.submit(make_spec("taken", "echo other >> count"))
    assert (Path(job.directory) / "count").read_text() == "ran\n"


async def test_a_job_that_the_queue_does_not_show_is_submitted_once(
    node, behind, slurm_of_session, make_spec
):
    """The accounting does not have the job yet either."""
    for command in ("squeue", "sacct"):
        node.command(command, "exit 0")
    spec = make_spec("not-shown", "echo ran >> count")
    job = await behind.submit(spec)
    assert job == await behind.submit(spec) == await behind.find("not-shown")
    assert (await behind.poll(["not-shown"]))["not-shown"].state.is_live
    (node.bin / "squeue").unlink()
    assert (await end_of(behind, "not-shown")).state is JobState.SUCCEEDED
    assert jobs_of(slurm_of_session, "not-shown") == ["COMPLETED"]


async def test_no_variable_of_the_login_changes_what_slurms_commands_do(
    make_slurm_config, slurm_of_session, make_spec, tmp_path
):
    variables = {
        **{"SQUEUE_PARTITION": "preempt", "SBATCH_PARTITION": "preempt", "SBATCH_EXPORT": "NONE"},
        **{
            "SACCT_FORMAT": "JobID",
            "SLURM_JOB_ID": "1",
            "SCANCEL_STATE": "PENDING",
            "SINFO_PARTITION": "none",
        },
    }
    node = LoginNode(slurm_of_session, tmp_path / "login", environment=variables)
    script = "export HERE=there\nsrun --mpi=none --ntasks=1 printenv SLURM_JOB_PARTITION HERE > variables"
    try:
        async with connect(make_slurm_config(), node.connections) as cluster:
            job = await cluster.submit(make_spec("own-variables", script))
            assert (await end_of(cluster, job.name)).state is JobState.SUCCEEDED
            assert (Path(job.directory) / "variables").read_text() == "batch\nthere\n"
            await cluster.submit(make_spec("ended-with-variables", "sleep 1000"))
            await cluster.cancel("ended-with-variables")
            printed = (await cluster.run(["env"])).stdout
    finally:
        node.stop()
    assert jobs_of(slurm_of_session, "ended-with-variables") == ["CANCELLED"]
    assert [line for line in printed.splitlines() if line.startswith("SLURM_CONF=")]


async def test_what_bears_the_name_of_an_earlier_job_is_ended(slurm, slurm_of_session, make_spec, tmp_path):
    """The controller may accept a job after sbatch gave up. Jobs in other folders belong to others."""
    await slurm.submit(make_spec("twice", "sleep 1000"))
    options = ["--parsable", "--job-name=twice", "--output=/dev/null"]
    for folder in (tmp_path / "twice", Path("/tmp")):  # noqa: S108 (any folder that is not below work_dir)
        slurm_of_session.command("sbatch", *options, f"--chdir={folder}", "--wrap", "sleep 1000")
    assert (await slurm.poll(["twice"]))["twice"].state.is_live
    assert [state for state in jobs_of(slurm_of_session, "twice") if state != "COMPLETING"] != []
    first, double, foreign = jobs_of(slurm_of_session, "twice")
    assert first in ("PENDING", "RUNNING")
    assert double in ("COMPLETING", "CANCELLED")
    assert foreign in ("PENDING", "RUNNING")
    await slurm.cancel("twice")
    first, _, foreign = jobs_of(slurm_of_session, "twice")
    assert (first, foreign in ("PENDING", "RUNNING")) == ("CANCELLED", True)


async def test_a_job_that_has_the_id_by_the_time_of_scancel_is_not_ended(
    node, behind, slurm_of_session, make_spec, tmp_path
):
    """A controller that has lost its state counts from an earlier id, so another job may get this one."""
    mine = await behind.submit(make_spec("loses-its-id", "sleep 1000"))
    other = await behind.submit(make_spec("gets-the-id", "sleep 1000"))
    wrong_once = tmp_path / "wrong-once"
    wrong_once.touch()
    node.command(
        "squeue", f'rm {wrong_once} || exec $real "$@"\n$real "$@" | sed "s/^{mine.job_id}|/{other.job_id}|/"'
    )
    await behind.cancel("loses-its-id")
    assert not wrong_once.exists()
    assert jobs_of(slurm_of_session, "loses-its-id") == ["CANCELLED"]
    assert jobs_of(slurm_of_session, "gets-the-id")[0] in ("PENDING", "RUNNING")


async def test_a_percent_sign_in_a_path_is_no_pattern_to_slurm(slurm, make_spec, tmp_path):
    """A backslash in the path would switch patterns off: see the values below."""
    log = tmp_path / "100%j" / "log.out"
    paths = {"directory": str(log.parent), "log_path": str(log)}
    await slurm.submit(make_spec("percent", "echo written").model_copy(update=paths))
    assert (await end_of(slurm, "percent")).state is JobState.SUCCEEDED
    assert log.read_text() == "written\n"


async def test_a_dead_controller_is_a_failure_and_then_all_goes_on(mini_slurm, slurm, make_spec):
    waits = "touch started; while test ! -e go; do sleep 0.05; done"
    job = await slurm.submit(make_spec("long", waits, time_limit_s=600))
    await eventually((Path(job.directory) / "started").exists)
    slurm_faults.stop_daemon(mini_slurm.home, "slurmctld", kill=False)  # it saves what it has just accepted
    failures = await asyncio.gather(
        slurm.poll(["long"]),
        slurm.cancel("long"),
        slurm.submit(make_spec("meanwhile", "true")),
        return_exceptions=True,
    )
    assert [type(failure) for failure in failures] == [OutOfReach] * 3
    assert "squeue failed on mini: " in str(failures[0])
    assert "slurm_load_jobs error: Unable to contact slurm controller" in str(failures[0])
    slurm_faults.start_daemon(mini_slurm.home, "slurmctld")
    assert (await slurm.poll(["long"]))["long"].state is JobState.RUNNING
    (Path(job.directory) / "go").touch()
    assert (await end_of(slurm, "long")).state is JobState.SUCCEEDED
    assert await slurm.find("meanwhile") is None


async def test_a_job_that_slurm_has_lost_is_not_settled_and_never_submitted_again(
    slurm, slurm_of_session, make_spec, tmp_path
):
    """A controller killed before it saved its state gives the job's id to another job."""
    job = await slurm.submit(make_spec("lost", "true"))
    noted = tmp_path / "clusters/mini/jobs/lost"
    (noted / "squeue").write_text((noted / "squeue").read_text().replace("|lost|", "|gone|"))
    noted.rename(noted.with_name("gone"))
    assert (await slurm.submit(make_spec("gone", "touch started"))).job_id == job.job_id
    status = (await slurm.poll(["gone"]))["gone"]
    assert (status.state, status.reason) == (
        JobState.RUNNING,
        "it has left the queue, and neither the accounting nor its script has its end yet "
        "(the accounting does not have it)",
    )


async def test_a_job_that_slurm_lost_before_it_started_is_waited_for_ten_minutes_only(
    node, behind, make_spec, monkeypatch
):
    """A controller that is killed forgets what it has just accepted; the accounting keeps it as waiting."""
    job = await behind.submit(make_spec("waits", "true").model_copy(update={"script": LATER}))
    assert (await behind.poll(["waits"]))["waits"].state is JobState.QUEUED
    node.command("squeue", "exit 0")
    deadline = time.monotonic() + 60
    while "PENDING" not in (status := (await behind.poll(["waits"]))["waits"]).reason:
        assert time.monotonic() < deadline, f"the accounting does not have it: {status.reason}"
        assert status.state is JobState.RUNNING

    monkeypatch.setattr(cluster_module, "_LOST_AFTER_S", 0)
    Path(job.log_path).write_text("It has started, and the accounting lags.")
    assert (await behind.poll(["waits"]))["waits"].state is JobState.RUNNING
    Path(job.log_path).unlink()
    lost = (await behind.poll(["waits"]))["waits"]
    assert (lost.state, lost.cluster_fault) == (JobState.UNKNOWN, False)
    assert lost.reason.startswith(f"Slurm has lost job {job.job_id}: it is not in the queue, has no log")

    node.command("squeue", 'exec $real "$@"')
    assert (await behind.poll(["waits"]))["waits"].state is JobState.QUEUED
    node.command("squeue", "exit 0")
    monkeypatch.setattr(cluster_module, "_LOST_AFTER_S", 0.001)
    again = (await behind.poll(["waits"]))["waits"]
    assert again.state is JobState.RUNNING, "missing from now on, and not since the first time"


async def test_a_dead_accounting_holds_nobody_up(mini_slurm, slurm, make_spec):
    slurm_faults.stop_daemon(mini_slurm.home, "slurmdbd")
    await slurm.submit(make_spec("unaccounted", "exit 3"))
    assert (await end_of(slurm, "unaccounted")).exit_code == 3
    assert await slurm.find("nobody") is None
    assert (await slurm.poll(["nobody"]))["nobody"].state is JobState.UNKNOWN


async def test_a_job_that_squeue_has_forgotten_is_in_the_accounting(
    node, behind, make_slurm_config, make_spec
):
    for name, script in (("good", "true"), ("bad", "exit 3")):
        await behind.submit(make_spec(name, script))
        await end_of(behind, name)
    not_yet = await behind.submit(make_spec("not-yet", "true").model_copy(update={"script": LATER}))
    await behind.cancel("not-yet")
    node.command("squeue", "exit 0")  # as the real one after MinJobAge
    async with connect(make_slurm_config(), node.connections) as later:
        deadline = time.monotonic() + 60
        not_settled = {"good"}
        while not_settled:  # the accounting lags by some seconds
            assert time.monotonic() < deadline, f"the accounting does not know {not_settled}"
            statuses = await later.poll(["good", "bad", "not-yet", "nobody"])
            not_settled = {name for name, status in statuses.items() if status.state.is_live}
        assert [status.state for status in statuses.values()] == [
            "succeeded",
            "failed",
            "cancelled",
            "unknown",
        ]
        assert statuses["bad"].exit_code == 3
        assert statuses["not-yet"].reason.startswith("cancelled before it started")
        assert await later.find("not-yet") == not_yet
        assert await later.submit(make_spec("good", "exit 4")) == await later.find("good")


LATER = "#!/bin/sh\n#SBATCH --begin=now+1hour\ntrue\n"


async def test_a_poll_of_hundreds_is_one_squeue(node, behind, make_spec):
    await behind.submit(make_spec("ended", "true"))
    await end_of(behind, "ended")
    job = await behind.submit(make_spec("live", "touch started; sleep 1000"))
    await eventually((Path(job.directory) / "started").exists)
    calls = node.bin / "calls"
    for name in ("squeue", "sacct"):
        node.command(name, f'echo {name} >> {calls}; exec $real "$@"')
    statuses = await behind.poll(["live", "ended", *(f"never-{number}" for number in range(500))])
    assert [statuses[name].state for name in ("live", "ended", "never-499")] == [
        *(JobState.RUNNING, JobState.SUCCEEDED, JobState.UNKNOWN)
    ]
    assert calls.read_text().split() == ["squeue", "sacct", "sacct"]
    await behind.poll(["live", "ended"])
    assert calls.read_text().split()[3:] == ["squeue"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--partition=nowhere", "invalid partition specified: nowhere"),
        ("--nodes=99 --exclusive --nodelist=n[1-9]", "Invalid node name specified"),
        ("--dependency=after-all:1", "Job dependency problem"),
        ("--switches=few", 'Invalid numeric value "few" for --switches'),
    ],
)
async def test_what_slurm_can_never_run_is_the_users_in_slurms_words(slurm, make_spec, *, line, said):
    spec = make_spec("never", "true").model_copy(update={"script": f"#!/bin/sh\n#SBATCH {line}\ntrue\n"})
    with pytest.raises(UserError, match="mini cannot run job never: ") as refused:
        await slurm.submit(spec)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert await slurm.find("never") is None


async def test_a_mistyped_option_of_a_clusters_file_is_named_with_its_place_and_nothing_is_submitted(
    make_slurm_config, slurm_of_session, make_spec
):
    """Only Slurm knows all options, as plug-ins of a site add some."""
    extra = ("--qso=high", "--constraint=a&b")
    spec = make_spec("mistyped", "true")
    options = "".join(f"#SBATCH {shlex.quote(option)}\n" for option in extra)
    spec = spec.model_copy(update={"script": spec.script.replace("set -eu\n", f"{options}set -eu\n", 1)})
    where = r"unrecognized option '--qso=high'.* \(extra_options in config/clusters/mini.yaml\)"
    async with connect(make_slurm_config(extra_options=extra), slurm_of_session.connections) as cluster:
        with pytest.raises(UserError, match=where):
            await cluster.submit(spec)
        assert await cluster.find("mistyped") is None
    assert "mistyped" not in slurm_of_session.command("squeue", "--noheader", "--states=all", "--format=%j")


async def test_a_named_node_that_is_drained_is_named_at_once_and_nothing_waits_for_it(
    slurm_of_session, slurm, make_spec
):
    """Slurm would let the job wait until somebody resumes the node."""
    spec = make_spec("waits", "true").model_copy(update={"nodes": ("node1", "node2")})
    slurm_of_session.command("scontrol", "update", "nodename=node2", "state=drain", "reason=bad DIMM")
    try:
        with pytest.raises(UserError, match=r"node2 is drained \(bad DIMM\)") as refused:
            await slurm.submit(spec)
    finally:
        with suppress(SystemFailure):  # a node that Slurm has taken back by itself cannot be resumed
            slurm_of_session.command("scontrol", "update", "nodename=node2", "state=resume")
    assert "node1" not in str(refused.value)
    assert await slurm.find("waits") is None
    await eventually(lambda: "idle" in slurm_of_session.command("sinfo", "-h", "-n", "node2", "-o", "%T"))
    await slurm.submit(spec)
    assert (await end_of(slurm, "waits")).state is JobState.SUCCEEDED


async def test_values_are_data_wherever_they_stand(slurm_of_session, make_slurm_config, make_spec, tmp_path):
    canary = "canary"
    hostile = f"$(touch {canary}) `touch {canary}` ;touch {canary}; ' \" %j %% |& * \\n -x"
    work_dir = str(tmp_path / hostile.replace("\\", ""))
    files = {f"$(touch {canary}) ;'.json": hostile + "\n$(id)\n", "--help": hostile}
    async with connect(make_slurm_config(work_dir=work_dir), slurm_of_session.connections) as cluster:
        plain = make_spec("plain", 'cat -- "$0" >/dev/null; pwd; cat -- --help', files=files)
        spec = plain.model_copy(
            update={"directory": f"{work_dir}/it's", "log_path": f"{work_dir}/logs/a %j;'log.out"}
        )
        job = await cluster.submit(spec)
        assert (await end_of(cluster, "plain")).state is JobState.SUCCEEDED
        assert await cluster.read(job.log_path) == f"{spec.directory}\n{hostile}".encode()
        for name, text in files.items():
            assert await cluster.read(f"{spec.directory}/{name}") == text.encode()
        assert await cluster.find("plain") == job
        done = await cluster.run(["env", f"VALUE={hostile}", "sh", "-c", 'printf %s "$VALUE"'])
        assert done.stdout == hostile
        with pytest.raises(UserError, match="is not below work_dir"):
            await cluster.submit(spec.model_copy(update={"name": "other", "directory": "/tmp/x"}))  # noqa: S108
    folders = (tmp_path, Path.cwd(), Path.home())
    assert not [
        folder for folder in folders if list(folder.glob(f"**/{canary}" if folder is tmp_path else canary))
    ]


async def test_ending_a_job_that_slurm_has_forgotten_is_no_failure(behind):
    commands = SlurmCommands(behind.run, cluster="mini", root="/nowhere")
    await commands.scancel("gone", ["999999"])


async def test_a_scancel_that_the_controller_lost_is_repeated(node, behind, make_gated, tmp_path):
    """A controller that dies before it saves its state forgets what it has accepted."""
    lost = tmp_path / "lost"
    node.command("scancel", f'[ -e {lost} ] && exec $real "$@"; touch {lost}')
    job = make_gated("cancelled-twice")
    await behind.submit(job.spec)
    await eventually(lambda: job.pid)
    await behind.cancel("cancelled-twice")
    assert (await end_of(behind, "cancelled-twice")).state is JobState.CANCELLED
    assert lost.exists()


async def test_a_job_whose_release_the_controller_lost_is_released_again(behind, node, make_spec, tmp_path):
    lost = tmp_path / "lost"
    node.command(
        "scontrol", f'[ "$1" != release ] || [ -e {lost} ] || {{ touch {lost}; exit 0; }}; exec $real "$@"'
    )
    await behind.submit(make_spec("held-again", "true"))
    assert lost.exists()
    assert (await end_of(behind, "held-again")).state is JobState.SUCCEEDED


async def test_a_job_that_a_person_holds_stays_held(behind, make_spec, slurm_of_session):
    full = slurm_of_session.command(
        "sbatch", "--parsable", "--nodes=8", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    job = await behind.submit(make_spec("held-by-person", "true"))

    def accrues():
        shown = slurm_of_session.command("squeue", "-h", "-j", job.job_id, "-O", "AccrueTime")
        return shown.strip() != "N/A"

    await eventually(accrues)
    slurm_of_session.command("scontrol", "uhold", job.job_id)
    slurm_of_session.command("scancel", full.strip())
    for _ in range(2):
        status = (await behind.poll(["held-by-person"]))["held-by-person"]
        assert (status.state, status.reason) == (
            JobState.QUEUED,
            "JobHeldUser: 'scontrol release' lets it go",
        )


BANNER = "echo; echo '| Welcome to the site | have | a | nice | day |'"


async def test_a_sites_banner_on_stdout_is_no_answer(node, behind, make_spec, tmp_path):
    """Not even if squeue does not show the job, so that its id is what sbatch printed."""
    blind = tmp_path / "blind"
    blind.touch()
    for command in ("squeue", "sacct", "scontrol", "sinfo", "scancel"):
        node.command(command, f'{BANNER}; [ ! -e {blind} ] || [ {command} = scontrol ] || exit 0; $real "$@"')
    node.command("sbatch", f'{BANNER}; $real "$@"; code=$?; {BANNER}; exit $code')
    job = await behind.submit(make_spec("behind-a-banner", "echo ran >> count"))
    assert job.job_id.isdecimal()
    blind.unlink()
    assert (await end_of(behind, "behind-a-banner")).state is JobState.SUCCEEDED
    assert (Path(job.directory) / "count").read_text() == "ran\n"


async def test_a_node_check_reads_no_banner(node, behind):
    commands = SlurmCommands(behind.run, cluster="mini", root="/nowhere")
    node.command("sinfo", f'{BANNER}; echo "two words"; exec $real "$@"')
    assert await commands.unusable_nodes(["no-such-node"]) == {}
    assert {partition.name for partition in await commands.partitions()} >= {"batch"}


async def test_a_job_that_an_empty_answer_hides_is_ended_all_the_same(
    node, behind, make_gated, slurm_of_session
):
    """An overloaded controller: squeue prints nothing with exit code 0, and the accounting has the job."""
    job = make_gated("hidden")
    await behind.submit(job.spec)
    await eventually(lambda: job.pid)
    node.command("squeue", "exit 0")
    await behind.cancel("hidden")
    assert jobs_of(slurm_of_session, "hidden") == ["CANCELLED"]


@pytest.mark.parametrize(
    "sacct", ["exit 0", '$real "$@" | sed "s/CANCELLED[^|]*/RUNNING/"'], ids=["without it", "has it running"]
)
async def test_nor_is_it_gone_while_no_command_shows_it(
    sacct,
    node,
    behind,
    make_gated,
    slurm_of_session,
    monkeypatch,
):
    monkeypatch.setattr(cluster_module, "_MISSING_FOR_S", 3)
    job = make_gated(f"hidden-{len(sacct)}")
    await behind.submit(job.spec)
    await eventually(lambda: job.pid)
    node.command("squeue", "exit 0")
    node.command("sacct", sacct)
    await behind.cancel(job.spec.name)
    assert jobs_of(slurm_of_session, job.spec.name) == ["CANCELLED"], "scancel knew its id"


async def test_a_refused_release_is_no_refusal_of_the_job(node, behind, make_spec, tmp_path):
    """Slurm has taken the job: a user's error would leave it in the queue with nobody to own it."""
    refuses = tmp_path / "refuses"
    refuses.touch()
    said = "Access/permission denied for job"
    node.command("scontrol", f'[ ! -e {refuses} ] || {{ echo "{said}" >&2; exit 1; }}; exec $real "$@"')
    with pytest.raises(SystemFailure, match=rf"took job not-released as \d+, holds it, .* {said}"):
        await behind.submit(make_spec("not-released", "true"))
    refuses.unlink()
    await behind.submit(make_spec("not-released", "true"))
    assert (await end_of(behind, "not-released")).state is JobState.SUCCEEDED


async def test_a_refused_release_keeps_no_other_job_from_being_polled(node, behind, make_spec, tmp_path):
    """The release was lost once, and is refused from then on, as by a site's rule for held jobs."""
    lost = tmp_path / "lost"
    said = "echo 'Access/permission denied for job' >&2; exit 1"
    node.command(
        "scontrol",
        f'[ "$1" != release ] || {{ [ ! -e {lost} ] || {{ {said}; }}; touch {lost}; exit 0; }}; $real "$@"',
    )
    await behind.submit(make_spec("never-released", "true"))
    (node.bin / "scontrol").rename(aside := tmp_path / "scontrol")
    await behind.submit(make_spec("other", "true"))
    aside.rename(node.bin / "scontrol")
    polled = await behind.poll(["never-released", "other"])
    assert polled["never-released"].state is JobState.QUEUED
    assert "it cannot be released: scontrol failed on mini: Access/permission denied" in (
        polled["never-released"].reason
    )
    assert polled["other"].state is not JobState.UNKNOWN


@contextmanager
def mounted(folder, options):
    """Mount a small file system in memory; skip the test where that is not allowed."""
    folder.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here, for which one has to be root")
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("options", "cause"), [("size=64k", "No space left on device"), ("ro", "Read-only file system")]
)
async def test_why_a_file_cannot_be_written_is_said(behind, tmp_path, options, cause):
    with mounted(folder := tmp_path / "disk", options):
        if options != "ro":
            with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
        with pytest.raises(SystemFailure, match=rf"could not be written on .*: {cause}"):
            await behind.write(str(folder / "new" / "file"), b"x" * 9000)
        assert not list(folder.rglob(".steptime-probe*"))
