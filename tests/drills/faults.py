"""The faults that strike a run and what it runs on, and how each is mended. All of them are real."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import slurm_faults
from end_to_end.driving import kill, wait_until
from free_ports import free_port

from drills import points
from drills.evidence import accounted_jobs
from drills.scene import PARSE, SUBMIT, WAIT
from drills.site import SWEEP_DAG
from steptime.mini_slurm import processes
from steptime.service import supervisor

if TYPE_CHECKING:
    pass

_NOTICED_S = 600
_LOCKED_AT_MOST_S = 1200
_KILLS = 4


# Processes of Airflow


def kill_worker(scene):
    """SIGKILL the task of the point: its process alone, or also the worker that watches it."""
    worker, *below = scene.worker(scene.point.task)
    kill(below if scene.schedule.way == "the task's process" else [worker, *below])


def _all_of(process):
    return [process, *process.children(recursive=True)]


def end_triggerer(scene):
    _end("triggerer", scene)


def end_scheduler(scene):
    _end("scheduler", scene)


def _end(component, scene):
    """End a component by SIGKILL or SIGTERM, as the schedule says; Airflow's supervisor restarts it."""
    process = scene.site.component(component)
    process.kill() if scene.schedule.way == "SIGKILL" else process.terminate()


def kill_triggerer(scene):
    scene.site.component("triggerer").kill()


def kill_scheduler(scene):
    scene.site.component("scheduler").kill()


def kill_api_server(scene):
    """SIGKILL the api-server once, or after each restart, between which the supervisor waits ever longer."""
    for _ in range(_KILLS if scene.schedule.way == "again and again" else 1):
        kill_api_server_once(scene)


def kill_api_server_once(scene):
    server = scene.site.component("api-server")
    kill(_all_of(server))
    server.wait(_NOTICED_S)


def await_api_server(scene):
    """Wait until the supervisor has restarted the api-server."""
    wait_until("an api-server that answers", lambda: scene.site.airflow.client.health().components)
    scene.note("the api-server answers")


def kill_supervisor(scene):
    """SIGKILL the supervisor: Airflow's components go on, and nothing restarts them."""
    session = _session(scene)
    process = psutil.Process(session)
    process.kill()
    process.wait(_NOTICED_S)
    scene.note(f"the supervisor has left {len(supervisor.session_members(session))} processes")


def kill_all_of_airflow(scene):
    """SIGKILL every process of Airflow, as when a container is ended; jobs go on."""
    session = _session(scene)
    wait_until("the end of all", lambda: not _killed(supervisor.session_members(session)), _NOTICED_S)


def start_again(scene):
    """Start Airflow as a person would; no process of the killed supervisor's session may be left."""
    site, session, told = scene.site, _session(scene), []
    left = supervisor.session_members(session)
    if scene.schedule.way == "steptime down, then up":
        down = site.airflow.steptime("down")
        assert down.returncode == 0, down.stderr
        told.append(down.stderr)
        assert site.service() is None
        assert not site.strays(), f"left behind after steptime down: {site.strays()}"
    site.start_airflow(told.append)
    for phase in told:
        scene.note(phase)
    assert not supervisor.session_members(session), "processes of the killed supervisor live"
    assert not site.strays(), f"left behind after steptime up: {site.strays()}"
    assert bool(left) == ("the supervisor of Airflow was killed" in "".join(told)), "people are not told"


def _session(scene):
    """Return the session id of the Airflow that ran when the drill began."""
    if "session" not in scene.kept:
        service = scene.site.service()
        assert service is not None, "Airflow is not running"
        scene.kept["session"] = service.pid
    return scene.kept["session"]


def _killed(members):
    kill(members)
    return members


# What people do in Airflow's UI


def mark_failed(scene):
    job = scene.live_job()
    scene.site.airflow.mark_failed(scene.run, scene.known_task(scene.point.task))
    _wait_for_end(scene, job)


def clear_submit(scene):
    first = scene.live_job()
    scene.site.airflow.clear(scene.run, scene.known_task(SUBMIT))
    _wait_for_end(scene, first)


def clear_wait(scene):
    """Clear the task that waits; it must go on with the same job."""
    job, task = scene.live_job(), scene.known_task(WAIT)
    scene.site.airflow.clear(scene.run, task)
    again = f"job {job.name}: "

    def waits_again():
        return scene.known_task(WAIT).try_number > task.try_number and again in scene.site.airflow.log_text(
            scene.run, scene.known_task(WAIT)
        )

    wait_until(f"another try that waits for {job.name}", waits_again, _NOTICED_S)
    assert job.job_id in _live(scene), "clearing the task that waits has ended the job"


def clear_last_cell(scene):
    """Clear the last of several cells, during or after its training; wait for its new job."""
    cell = scene.cells[-1]
    told = scene.site.airflow.log_text(scene.run, scene.known_task(WAIT, cell))
    (first,) = [job for job in scene.queue() if f"waiting for job {job.name} " in told]
    if scene.schedule.way == "it has failed":
        scene.site.slurm.command("scancel", first.job_id)
    if scene.schedule.way != "it trains":
        scene.training.open()
        scene.site.airflow.ended(scene.run)
    scene.kept["trained_again"] = scene.schedule.way == "it has finished"
    scene.site.airflow.clear(scene.run, scene.known_task(SUBMIT, cell))
    fresh = f"{first.name.rpartition('-')[0]}-2"
    wait_until(f"job {fresh}", lambda: fresh in {job.name for job in scene.queue()}, _NOTICED_S)


def delete(scene):
    """Fail the DAG run, as Airflow refuses to delete a running one, and delete it."""
    job = scene.live_job()
    scene.site.airflow.mark_run_failed(scene.run)
    scene.ended()
    scene.site.airflow.delete(scene.run)
    scene.kept["deleted"] = True
    _wait_for_end(scene, job)


def _wait_for_end(scene, job):
    """Wait until the job has left the queue: the run is held, so only a cancel can end it."""
    wait_until(f"the end of job {job.job_id}", lambda: job.job_id not in _live(scene), _NOTICED_S)


def delete_dag(scene):
    """Delete the DAG with all its runs, which Airflow allows while none of its tasks occupies a worker.

    Airflow deletes a trigger that has not started yet without calling it; its job would then go on.
    """
    job = scene.live_job()
    told = f"job {job.name}: "
    wait_until(
        f"the trigger of {job.name}",
        lambda: told in scene.site.airflow.log_text(scene.run, scene.known_task(WAIT)),
        _NOTICED_S,
    )
    scene.site.airflow.delete_dag(scene.run)
    scene.kept["deleted"] = True
    _wait_for_end(scene, job)


def restore_dag(scene):
    """Touch the DAG's file, so that Airflow reads it again."""
    scene.site.dag_file.touch()


def start_another(scene):
    """Trigger another DAG run of the same cell; Airflow must refuse one with the same id."""
    scene.start_run()
    again = scene.runs[-1]
    refused = scene.site.airflow.trigger_as(again.dag_run_id, again.dag_id)
    assert refused == HTTPStatus.CONFLICT, f"{again.dag_run_id} was started twice: {refused}"


# What people do to a sweep


def change_sweep_file(scene):
    """Break the sweep's file, or let it ask for another cell; wait until Airflow has read its DAG again."""
    file = scene.site.sweep_file
    written = scene.kept["sweep file"] = file.read_text()
    broken = written.replace("gpu_hours_max", "gpu_hours_most")
    file.write_text(broken if scene.schedule.way == "broken" else written.replace("gpus: '1'", "gpus: '2'"))
    assert file.read_text() != written
    scene.site.airflow.parse_again(SWEEP_DAG)


def restore_sweep_file(scene):
    scene.site.sweep_file.write_text(scene.kept["sweep file"])
    scene.site.airflow.parse_again(SWEEP_DAG)


def stop_sweep(scene):
    """Stop the sweep by one of two buttons in Airflow, or from a shell."""
    job, airflow = scene.live_job(), scene.site.airflow
    if scene.schedule.way == "steptime sweep cancel":
        ended = airflow.steptime("sweep", "cancel", scene.run.dag_run_id)
        assert ended.returncode == 0, ended.stderr
    elif scene.schedule.way == "its cell marked failed":
        airflow.mark_failed(scene.run, scene.known_task(WAIT))
    else:
        airflow.mark_run_failed(scene.run)
    _wait_for_end(scene, job)


# The way to the cluster


def drop_connections(scene):
    scene.site.login.drop_connections()


def refuse_logins(scene):
    """Stop the sshd, or let it refuse logins as during an outage of the directory service."""
    scene.site.login.stop()
    if scene.schedule.way == "the login is refused":
        scene.site.login.start(admits=False)


def take_logins(scene):
    scene.site.login.stop()
    scene.site.login.start()


def has_trained_meanwhile(scene):
    """Return whether the job has succeeded while nobody could ask for it."""
    return [job.state for job in scene.queue()] == ["COMPLETED"]


def has_been_given_up(scene):
    """Return whether the wait and the DAG run have failed, and the job has succeeded meanwhile."""
    return (
        scene.state(WAIT) == "failed"
        and scene.site.airflow.client.dag_run(scene.run.dag_id, scene.run.dag_run_id).has_ended
        and has_trained_meanwhile(scene)
    )


def take_logins_and_clear(scene):
    take_logins(scene)
    scene.site.airflow.clear(scene.run, scene.known_task(WAIT))


def edit_connection(scene):
    """Enter another port or user in the connection, and drop the open connections."""
    login = scene.site.login.login()
    wrong = {"port": free_port()} if scene.schedule.way == "another port" else {"login": "nobody"}
    scene.site.keep_login(replace(login, **wrong))
    scene.site.login.drop_connections()


def restore_connection(scene):
    scene.site.keep_login(scene.site.login.login())


def is_told_of_silence(scene):
    return "is out of reach for" in scene.site.airflow.log_text(scene.run, scene.known_task(WAIT))


def hang_logins(scene):
    scene.site.login.hang()
    scene.site.login.drop_connections()


def answer_logins(scene):
    scene.site.login.resume()


def lose_reply(scene):
    """Lose the reply of sbatch, which has submitted the job."""
    if scene.schedule.way == "the connection breaks":
        scene.site.login.drop_connections()


# Slurm


def stop_controller(scene):
    """End the controller, once it has saved its jobs: one that is killed earlier forgets them."""
    slurm = scene.site.slurm
    saved = slurm.layout.root / "state/job_state"

    def has_saved():
        names = slurm.command("squeue", "-h", "-o", "%j").encode().split()
        return all(name in saved.read_bytes() for name in names)

    wait_until("the controller's jobs in its state", has_saved, _NOTICED_S)
    slurm_faults.stop_daemon(scene.site.slurm.home, "slurmctld", kill=scene.schedule.way == "SIGKILL")


def start_controller(scene):
    slurm_faults.start_daemon(scene.site.slurm.home, "slurmctld")
    scene.point.go_on(scene)  # without a controller the queued run could not


def lose_controllers_state(scene):
    """SIGKILL the controller and delete its state: restarted, it cancels what the nodes still run.

    The accounting has the job by then; a job that neither has is waited for until its time limit is over.
    """
    wait_until("the job in the accounting", lambda: accounted_jobs(scene), _NOTICED_S)
    # Without its state it would count from the first number again, and nodes refuse those that they know.
    conf, next_id = scene.site.slurm.layout.slurm_conf, int(scene.live_job().job_id) + 1
    slurm_faults.stop_daemon(scene.site.slurm.home, "slurmctld")
    conf.write_text(re.sub(r"FirstJobId=\d+", f"FirstJobId={next_id}", conf.read_text()))
    for entry in (scene.site.slurm.layout.root / "state").iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def stop_accounting(scene):
    forget_ended_jobs(scene)
    slurm_faults.stop_daemon(scene.site.slurm.home, "slurmdbd", kill=scene.schedule.way == "SIGKILL")


def start_accounting(scene):
    slurm_faults.start_daemon(scene.site.slurm.home, "slurmdbd")


def suspend_accounting(scene):
    forget_ended_jobs(scene)
    processes.daemons(scene.site.slurm.layout)["slurmdbd"].suspend()


def resume_accounting(scene):
    processes.daemons(scene.site.slurm.layout)["slurmdbd"].resume()


def lock_accounting(scene):
    """Lock the accounting's database as a backup does: sacct answers without what happens meanwhile."""
    forget_ended_jobs(scene)
    socket = scene.site.slurm.layout.root / "run/mysql.sock"
    backup = subprocess.Popen(
        # If nobody ends it, as after a red drill, it times out and the next drill can write.
        ["timeout", str(_LOCKED_AT_MOST_S), "mariadb", f"--socket={socket}", "--unbuffered", "-N"],  # noqa: S607
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert backup.stdin
    assert backup.stdout
    backup.stdin.write("FLUSH TABLES WITH READ LOCK; SELECT 'locked';\n")
    backup.stdin.flush()
    assert backup.stdout.readline() == "locked\n"
    scene.kept["backup"] = backup


def unlock_accounting(scene):
    scene.kept["backup"].communicate()


def has_concluded(scene):
    """Return whether the task that waits has ended, with what it can learn during the fault."""
    return scene.state(WAIT) in ("success", "failed")


def forget_ended_jobs(scene):
    """Hide ended jobs from squeue, as after MinJobAge: only the accounting knows how they ended."""
    scene.wrap("squeue", '$real "$@" | grep -v -E "[|](COMPLETED|FAILED|CANCELLED)[|]"; exit 0')


def kill_node(scene):
    (node,) = scene.live_job().nodes
    scene.kept["node"] = node
    slurm_faults.kill_node(scene.site.slurm.home, node)


def start_node(scene):
    slurm_faults.start_daemon(scene.site.slurm.home, f"slurmd-{scene.kept['node']}")


def preempt(scene):
    """Submit a job to a partition of higher priority that takes all nodes."""
    job = scene.live_job()
    wrapped = ("--job-name=takes-all", "--nodes=8", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    printed = scene.site.slurm.command("sbatch", "--parsable", "--chdir=/tmp", *wrapped)
    scene.kept["taker"] = printed.strip()
    _wait_for_end(scene, job)


def kill_worker_of_resubmission(scene):
    """Preempt the job; kill the worker of the task that waits once Slurm has the second job."""
    points.AFTER_SBATCH.prepare(scene)
    preempt(scene)
    wait_until("the resubmission's sbatch", partial(points.AFTER_SBATCH.reached, scene), _NOTICED_S)
    kill_worker(scene)
    points.AFTER_SBATCH.go_on(scene)


def give_back(scene):
    scene.site.slurm.command("scancel", scene.kept["taker"])


def hold(scene):
    scene.site.slurm.command("scontrol", "hold", scene.live_job().job_id)


def is_told_of_hold(scene):
    """Return whether the log of the wait says that the job is held, so that somebody can release it."""
    return "JobHeld" in scene.site.airflow.log_text(scene.run, scene.known_task(WAIT))


def release(scene):
    scene.site.slurm.command("scontrol", "release", scene.live_job().job_id)


def suspend_job(scene):
    scene.site.slurm.command("scontrol", "suspend", scene.live_job().job_id)


def is_told_of_suspension(scene):
    return "queued, suspended" in scene.site.airflow.log_text(scene.run, scene.known_task(WAIT))


def resume_job(scene):
    scene.site.slurm.command("scontrol", "resume", scene.live_job().job_id)


def cancel_outside(scene):
    scene.site.slurm.command("scancel", scene.live_job().job_id)


def _live(scene):
    return {job.job_id for job in scene.queue() if job.in_queue}


# Files


def block_log(scene):
    """Make the job's log hang or fail when it is opened; the job itself can still write."""
    (job,) = scene.queue()
    (log,) = Path(job.directory).glob("log-*.out")
    scene.kept["log"] = log
    log.rename(log.with_suffix(".aside"))
    if scene.schedule.way == "reads hang":
        os.mkfifo(log)
    else:
        log.mkdir()


def has_been_waited_for(scene):
    """Return whether the wait has seen the job's end."""
    return scene.state(WAIT) == "success"


def unblock_log(scene):
    log = scene.kept["log"]
    if log.is_dir():
        log.rmdir()
    else:
        os.close(os.open(log, os.O_RDWR | os.O_NONBLOCK))  # a blocked reader gets an empty file
    log.with_suffix(".aside").replace(log)


def take_store_away(scene):
    """Fill the disk of an SQLite store to the last byte, or let PostgreSQL crash."""
    if scene.site.postgresql:
        scene.site.postgresql.stop()
        return
    with scene.site.filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with scene.site.filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))


def store_is_waited_for(scene):
    """Return whether `parse`, or `wait` before it, cannot use the store and tries again."""
    for task_id in (PARSE, WAIT):
        task = scene.task(task_id)
        if task is None or task.state not in ("running", "deferred"):
            continue
        if "The store is asked again" in scene.site.airflow.log_text(scene.run, task):
            return True
    return False


def give_store_back(scene):
    if scene.site.postgresql:
        scene.site.postgresql.start()
    else:
        scene.site.filler.unlink()
