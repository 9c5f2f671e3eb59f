"""The mini Slurm itself: jobs run and are accounted, dead daemons start again, and nothing is left behind."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime

import psutil
import pytest
import slurm_faults

from steptime.mini_slurm import daemons, processes, service
from steptime.mini_slurm.layout import HOST_ALIAS, login_command

pytestmark = pytest.mark.slurm


def eventually(condition, what, *, within_s=90):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def quiet(_phase):
    pass


def submit(slurm, script, *options):
    """Submit a job as a user does, through ssh with the script on stdin; return its id."""
    return slurm.ssh("sbatch", "--parsable", *options, stdin=f"#!/bin/bash\n{script}\n").strip()


def accounted(slurm, job):
    """Return the state and exit code of a job in the accounting."""
    return slurm.command("sacct", "-XnP", "-j", job, "-o", "State,ExitCode").strip()


@contextmanager
def idle_login(slurm):
    """Yield the ssh client of a login that runs nothing."""

    def pids():
        return {process.pid for process in processes.logins(slurm.layout)}

    before = pids()
    ssh = [*login_command(slurm.layout)[:-1], "-N", HOST_ALIAS]
    with subprocess.Popen(ssh, stderr=subprocess.DEVNULL) as client:
        try:
            eventually(lambda: bool(pids() - before), "a login")
            yield client
        finally:
            client.kill()


@contextmanager
def idle_process(environment):
    """Yield a process that waits, with this environment, as a leader of its own session."""
    with subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def booted(slurm, node):
    """Return the boot time of a node in Slurm's view, in unix seconds."""
    told = slurm.command("scontrol", "show", "node", node)
    return datetime.fromisoformat(told.partition("BootTime=")[2].split()[0]).timestamp()


def test_a_job_that_is_submitted_by_ssh_runs_on_stand_in_gpus_and_is_accounted(mini_slurm, tmp_path):
    output = tmp_path / "job.out"
    script = "srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; exit 3"
    job = submit(mini_slurm, script, "--nodes=2", "--gres=gpu:8", "--exclusive", f"--output={output}")
    eventually(lambda: accounted(mini_slurm, job) == "FAILED|3:0", "the job in sacct")
    said = [line for line in output.read_text().splitlines() if line.startswith("node")]
    assert sorted(said) == [f"node{number} 0,1,2,3,4,5,6,7" for number in (1, 2)]


def test_keys_and_passwords_are_their_owners_alone(mini_slurm):
    root = mini_slurm.layout.root
    assert (root / "etc/munge.key").stat().st_mode & 0o777 == 0o400
    secret = [*(root / "etc").iterdir(), root / "ssh/id", root / "ssh/host"]
    assert {path.name: oct(mode) for path in secret if (mode := path.stat().st_mode & 0o077)} == {}


def test_a_step_on_two_nodes_meets_through_pmix(mini_slurm):
    """The nodes share a host, on which PMIx would use the same folder for a step's ranks on each."""
    assert "pmix" in mini_slurm.command("srun", "--mpi=list"), "apt-get install libpmix-dev"
    step = ("srun", "--mpi=pmix", "--nodes=2", "--ntasks=2", "sh", "-c", "echo $SLURMD_NODENAME $PMIX_RANK")
    assert sorted(mini_slurm.ssh(*step).splitlines()) == ["node1 0", "node2 1"]


SPANK_PLUGIN = """
extern "C" {{
extern const char plugin_name[] = "greeting", plugin_type[] = "spank";
extern const unsigned int plugin_version = {version:#x};
int spank_setenv(void *, const char *, const char *, int);
int slurm_spank_task_init(void *task, int, char **arguments) {{
    return spank_setenv(task, "GREETING", arguments[0], 1);
}}
}}
"""


@pytest.fixture
def plugin(mini_slurm, tmp_path):
    """Yield a SPANK plugin for this Slurm, which sets a variable of steps to its argument."""
    release = mini_slurm.command("sinfo", "--version").split()[1]
    version = int.from_bytes(bytes(map(int, release.split(".")[:3])))
    source, plugin = tmp_path / "greeting.cc", tmp_path / "greeting.so"
    source.write_text(SPANK_PLUGIN.format(version=version))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", plugin, source], check=True)  # noqa: S607 (Debian's)
    yield plugin
    service.up(mini_slurm.home, quiet, plugstack="")


def test_plugins_are_told_to_running_nodes_kept_and_taken_back(mini_slurm, plugin):
    def greeting():
        return mini_slurm.ssh("srun", "sh", "-c", "echo $GREETING").strip()

    job = submit(mini_slurm, "sleep 300", "--output=/dev/null")
    eventually(lambda: "RUNNING" in accounted(mini_slurm, job), "the job runs")
    before = processes.daemons(mini_slurm.layout)
    service.up(mini_slurm.home, quiet, plugstack=f"required {plugin} hello\n")
    now = processes.daemons(mini_slurm.layout)
    assert {name for name in daemons.ALL if before[name] == now[name]} == {
        name for name in daemons.ALL if not name.startswith("slurmd-")
    }
    assert mini_slurm.command("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"
    assert greeting() == "hello"
    service.up(mini_slurm.home, quiet)
    assert greeting() == "hello"
    service.up(mini_slurm.home, quiet, plugstack="")
    assert greeting() == ""


def test_up_starts_what_has_died_and_a_job_goes_on(mini_slurm):
    job = submit(mini_slurm, "sleep 300", "--output=/dev/null")
    eventually(lambda: "RUNNING" in accounted(mini_slurm, job), "the job runs")
    before = booted(mini_slurm, "node1")
    for daemon in ("munged", "mariadbd", "slurmdbd", "slurmd-node1", "sshd"):
        slurm_faults.stop_daemon(mini_slurm.home, daemon)
    # If killed so soon after a submit, it may not have saved the job yet.
    slurm_faults.stop_daemon(mini_slurm.home, "slurmctld", kill=False)
    now = service.status(mini_slurm.home)
    assert not now.healthy
    assert now.problem
    assert now.problem.startswith("munged, mariadbd, slurmdbd, slurmctld, slurmd-node1, sshd not running")

    _, ran_already = service.up(mini_slurm.home, quiet)
    assert not ran_already
    assert service.status(mini_slurm.home).healthy
    assert mini_slurm.command("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"
    # Slurm rounds to seconds.
    assert booted(mini_slurm, "node1") <= before + 2, "a daemon was started, not a node"


@pytest.mark.exhaustive
def test_up_after_a_power_cut_tells_slurm_that_the_nodes_were_rebooted(mini_slurm):
    """Slurm then ends those of the earlier jobs that have run for 15 s or more."""
    submit(mini_slurm, "sleep 300", "--output=/dev/null")
    eventually(lambda: len(processes.node_processes(mini_slurm.layout)["node1"]) >= 3, "the job runs")
    cut = int(time.time())
    assert processes.kill(processes.everything(mini_slurm.layout)) == []
    service.up(mini_slurm.home, quiet)
    assert service.status(mini_slurm.home).healthy
    assert booted(mini_slurm, "node1") >= cut


def test_a_port_that_another_program_has_taken_is_left_to_it(mini_slurm):
    before = mini_slurm.layout.ports
    slurm_faults.stop_daemon(mini_slurm.home, "slurmctld")
    with socket.create_server(("127.0.0.1", before.slurmctld)):
        phases = []
        service.up(mini_slurm.home, phases.append)
    assert f"port {before.slurmctld} is taken by another program; choosing others" in phases
    assert not set(before.by_daemon().values()) & set(mini_slurm.layout.ports.by_daemon().values())
    assert service.status(mini_slurm.home).healthy
    assert mini_slurm.ssh("sinfo", "-h", "-o", "%D", "-p", "batch").strip() == "8"


def test_batch_takes_nodes_from_the_two_other_partitions(mini_slurm):
    def submit_to(partition, nodes):
        return submit(
            mini_slurm, "sleep 300", f"-N{nodes}", "--exclusive", "-p", partition, "-o", "/dev/null"
        )

    requeued, cancelled = submit_to("preempt", 4), submit_to("preempt-cancel", 4)
    eventually(lambda: service.status(mini_slurm.home).jobs == {"RUNNING": 2}, "both run")
    first = submit_to("batch", 8)
    eventually(lambda: accounted(mini_slurm, first) == "RUNNING|0:0", "the job in batch")
    eventually(lambda: accounted(mini_slurm, cancelled) == "PREEMPTED|0:0", "the one that is cancelled")
    eventually(lambda: accounted(mini_slurm, requeued) == "PENDING|0:0", "the one that is queued again")


def test_a_shell_that_only_asks_this_slurm_is_none_of_its_processes(mini_slurm):
    """Whoever types squeue here has SLURM_CONF set, as the jobs have; a job has its node's name, too."""
    given = {**os.environ, "SLURM_CONF": str(mini_slurm.layout.slurm_conf)}
    given.pop("SLURMD_NODENAME", None)
    with (
        idle_process(given) as shell,
        idle_process({**given, "SLURMD_NODENAME": "n1"}) as job,
    ):
        ids = {process.pid for process in processes.everything(mini_slurm.layout)}
        assert (shell.pid in ids, job.pid in ids) == (False, True)


def test_down_ends_jobs_and_what_they_left_behind_and_keeps_the_accounting(mini_slurm):
    seconds = str(100_000 + os.getpid())

    def sleepers():
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[1:] == [seconds]
        ]

    stray = f"setsid --fork env --unset=STEPTIME_SLURM sleep {seconds}; sleep {seconds}"
    # Not by --export=NONE, for which newer Slurms wait for a login of the user.
    unmarked = ("env", "--unset=STEPTIME_SLURM", "sbatch", "--parsable", "--output=/dev/null")
    job = mini_slurm.ssh(*unmarked, stdin=f"#!/bin/bash\n{stray}\n").strip()
    eventually(lambda: len(sleepers()) == 2, "the job and its stray child")
    with idle_login(mini_slurm) as client:
        slurm_faults.stop_daemon(mini_slurm.home, "sshd")  # no daemon knows of the login any more
        assert client.poll() is None
        assert service.down(mini_slurm.home, quiet) is True
        assert client.wait(timeout=90) == 255
    assert processes.everything(mini_slurm.layout) == []
    assert sleepers() == []
    assert not service.status(mini_slurm.home).running
    assert service.down(mini_slurm.home, quiet) is False

    service.up(mini_slurm.home, quiet)
    eventually(lambda: accounted(mini_slurm, job).startswith("CANCELLED"), "its end in the accounting")


LISTEN_WHERE_THE_HOST_NAME_LEADS = """
import sys
from pathlib import Path
import psutil
from steptime.mini_slurm import processes, service
from steptime.mini_slurm.layout import login_command, HOST_ALIAS

try:
    layout, _ = service.up(Path(sys.argv[1]), print)
    print(*sorted({
        f"listens:{one.laddr.ip}" for daemon in processes.daemons(layout).values()
        for one in daemon.net_connections("tcp") if one.status == psutil.CONN_LISTEN
    }))
finally:
    service.down(Path(sys.argv[1]), print)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give this test a host name and an /etc/hosts")
def test_it_starts_where_the_host_name_is_not_127_0_0_1(tmp_path):
    """Debian's installer writes 127.0.1.1, a container has its own address; no other is listened on."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 myhost\n")
    prepare = 'mount --bind "$0" /etc/hosts && hostname myhost && exec "$@"'
    script = [sys.executable, "-c", LISTEN_WHERE_THE_HOST_NAME_LEADS, tmp_path / "home"]
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "sh", "-c", prepare, hosts, *script],  # noqa: S607 (util-linux)
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listening = [word for word in done.stdout.split() if word.startswith("listens:")]
    assert listening == ["listens:127.0.0.1", "listens:127.0.1.1"]  # sshd, and the daemons of Slurm
