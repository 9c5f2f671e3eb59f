"""`make test-compose`: build, start and break the team deployment, as real containers."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from engine import STAND_INS, NoEngineError, base_images, engine

from steptime.errors import SystemFailure, UserError
from steptime.local_services import is_free
from steptime.service.rest import AirflowClient

ROOT = Path(__file__).parents[2]
PORT = next(port for port in range(18080, 18180) if is_free(port))
PASSWORDS = ("AIRFLOW_DB", "STORE_DB", "AIRFLOW_ADMIN", "REDIS")
DAG = "steptime_llama3.1-25.04"
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer", "worker", "cleanup")
"""The services that an upgrade replaces; the cluster is not one of them."""
KILLED = (
    "api-server",
    "scheduler",
    "dag-processor",
    "triggerer",
    "worker",
    "redis",
    "airflow-db",
    "store-db",
)
_STARTS_WITHIN_S = 900
_RUNS_WITHIN_S = 1200
_STEPS = 600
"""Enough steps for services to be killed one after another while the run trains."""
Found = TypeVar("Found")


class Deployment:
    """A copy of the checkout with its own .env, and the containers that Compose makes from it."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, tracked.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self.values = {
            **{f"{name}_PASSWORD": secrets.token_hex(16) for name in PASSWORDS},
            **{f"AIRFLOW_{name}": secrets.token_hex(32) for name in ("API_SECRET_KEY", "JWT_SECRET")},
            "AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW_EXECUTOR": "CeleryExecutor",
            "AIRFLOW_PORT": str(PORT),
            "COMPOSE_PROJECT_NAME": "steptime-test",
            "COMPOSE_PROFILES": "celery",
            "COMPOSE_FILE": "docker-compose.yaml:docker-compose.mini-slurm.yaml:docker-compose.override.yaml",
            **base_images(environment),
        }
        self.version("1")
        self._site()

    def version(self, number):
        """Set the version of the package and the tag of its images."""
        self.values["STEPTIME_VERSION"] = number
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in self.values.items()))

    def _site(self):
        """Give the images this machine's certificates, package index and folders of wheels."""
        site = self.folder / "docker/site"
        authorities = site / "usr/local/share/ca-certificates"
        authorities.mkdir(parents=True)
        for certificate in Path("/usr/local/share/ca-certificates").glob("**/*.crt"):
            shutil.copy(certificate, authorities)
        told = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        settings = dict(line.partition("=")[::2] for line in told.splitlines())
        kept = {name: _words(settings, name) for name in ("index-url", "extra-index-url", "find-links")}
        kept = {name: words for name, words in kept.items() if words}
        text = "".join(f"{name} = {' '.join(words)}\n" for name, words in kept.items())
        (site / "etc").mkdir()
        (site / "etc/pip.conf").write_text(f"[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n{text}")
        folders = [f"{word}:{word}:ro" for word in kept.get("find-links", []) if Path(word).is_dir()]
        services = {name: {"volumes": folders} for name in ("worker", "mini-slurm")} if folders else {}
        (self.folder / "docker-compose.override.yaml").write_text(json.dumps({"services": services}))

    def docker(self, *arguments):
        """Run docker and return its output. Raises SystemFailure."""
        command = ["docker", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemFailure(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def compose(self, *arguments):
        """Run Compose and return its output. Raises SystemFailure."""
        return self.docker("compose", *arguments)

    def up(self, *options):
        """Start everything and wait until every service is healthy; return how long it took, seconds."""
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build", "--scale=worker=2", *options)
        self.wait_until_healthy()
        return time.monotonic() - began

    def containers(self):
        """Return the running containers as Compose shows them."""
        return [json.loads(line) for line in self.compose("ps", "--format=json").splitlines()]

    def wait_until_healthy(self):
        """Wait until all 11 containers run, and all that have a health check are healthy."""

        def healthy():
            found = self.containers()
            return len(found) == 11 and all(
                container["State"] == "running"
                and container["Health"] == ("" if container["Service"] == "cleanup" else "healthy")
                for container in found
            )

        try:
            wait_for("every service is healthy", healthy, _STARTS_WITHIN_S)
        except SystemFailure:
            print(self.compose("ps", "--all"), self.compose("logs", "--tail=20"))
            raise

    def kill(self, service):
        """SIGKILL a container's first process from outside the container, so that Docker sees a crash."""
        container = next(shown["ID"] for shown in self.containers() if shown["Service"] == service)
        process = self.docker("inspect", "--format={{.State.Pid}}", container).strip()
        program = f"import os; os.kill({process}, 9)"
        image = f"steptime:{self.values['STEPTIME_VERSION']}"
        outside = ["--pid=host", "--user=0", "--entrypoint=python"]
        self.docker("run", "--rm", *outside, image, "-c", program)

    def airflow(self):
        """Return a client that logs in as the first user."""
        return AirflowClient(f"http://127.0.0.1:{PORT}", "admin", self.values["AIRFLOW_ADMIN_PASSWORD"])

    def ended(self, run, within_s=_RUNS_WITHIN_S):
        """Wait for the end of a DAG run, which has to succeed."""

        def end():
            with suppress(SystemFailure), self.airflow() as client:
                now = client.dag_run(run.dag_id, run.dag_run_id)
                return now if now.has_ended else None
            return None

        now = wait_for(f"the end of {run.dag_run_id}", end, within_s)
        if now.state != "success":
            with self.airflow() as client:
                tasks = client.task_instances(run.dag_id, run.dag_run_id)
            print({task.label: task.state for task in tasks}, self.compose("logs", "--tail=40", "worker"))
            raise SystemFailure(f"{run.dag_run_id} has {now.state}")
        return now

    def jobs(self):
        """Return the state of every job in Slurm's accounting."""
        conf = "SLURM_CONF=/opt/steptime/home/slurm/etc/slurm.conf"
        asked = (
            "sacct",
            "--allocations",
            "--duplicates",
            "--noheader",
            "--parsable2",
            "--format=State",
            "--starttime=now-1days",
        )
        return self.compose("exec", "-T", "mini-slurm", "env", conf, *asked).splitlines()

    def results(self):
        """Return the names of all results in the store."""
        told = self.compose("exec", "-T", "api-server", "steptime", "results", "--format=json")
        return sorted(row["job_name"] for row in json.loads(told)["results"])

    def training(self, jobs):
        """Start a long run and wait until Slurm runs its job; return it, and `jobs` with this one."""
        conf = {
            "gpus": "1",
            "checkpoint": False,
            "cluster": "mini-slurm",
            "max_steps": _STEPS,
            "time_limit": "02:00:00",  # services are killed for longer than the usual 10 minutes
        }
        with self.airflow() as client:
            run = client.trigger(DAG, conf, patience_s=300)
        wait_for("its job runs", lambda: self.jobs()[jobs:] == ["RUNNING"], _RUNS_WITHIN_S)
        return run, jobs + 1


def _words(settings, name):
    """Return the words of a setting of pip, without folders of indexes."""
    value = settings.get(f":env:.{name}") or settings.get(f"global.{name}", "")
    return [word for word in value.strip("'").split() if ":///" not in word]


def wait_for(what, condition, timeout_s):
    """Poll until the condition returns something true. Raises SystemFailure after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemFailure(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(1)
    return found


def check(what, found, expected):
    """Raise SystemFailure if two values differ."""
    if found != expected:
        raise SystemFailure(f"{what}: {found} instead of {expected}")


_BEGAN = time.monotonic()


def say(sentence):
    """Print a sentence with the minutes since the start."""
    print(f"{(time.monotonic() - _BEGAN) / 60:5.1f} min  {sentence}", flush=True)


def builds_and_starts(deployment):
    """Build once, and start everything."""
    dangling = ("images", "--quiet", "--filter=dangling=true")
    before = deployment.docker(*dangling)
    deployment.compose("build")
    check("dangling images", deployment.docker(*dangling), before)
    say("built the image of the services and the image of the mini Slurm; no dangling images")
    image = f"steptime:{deployment.values['STEPTIME_VERSION']}"
    for command in (["bash", "-c", "exec airflow version"], ["sh", "-c", "exec /entrypoint airflow version"]):
        deployment.docker("run", "--rm", image, *command)
    say("the image runs the commands and the probes of Airflow's Helm chart")
    say(f"all services are healthy after {deployment.up():.0f} s, with two Celery workers")
    user = deployment.compose("exec", "-T", "scheduler", "id", "-u").strip()
    check("the user of a service", user, "50000")
    deployment.compose("exec", "-T", "scheduler", "airflow", "dags", "unpause", "--yes", DAG)


def survives_kills(deployment):
    """Kill each service while a run trains; return the number of jobs, one for each run."""
    run, jobs = None, 0
    for service in KILLED:
        if run is None or deployment.jobs()[-1] != "RUNNING":
            if run is not None:
                deployment.ended(run)
            run, jobs = deployment.training(jobs)
        began = time.monotonic()
        deployment.kill(service)
        deployment.wait_until_healthy()
        states = deployment.jobs()
        check(f"jobs after {service} was killed", states, ["COMPLETED"] * (jobs - 1) + [states[-1]])
        say(
            f"killed {service} during a run: healthy after {time.monotonic() - began:.0f} s; "
            f"{jobs - 1} jobs before, 1 job of this run: {states[-1]}"
        )
    if run is not None:
        deployment.ended(run)
    check("jobs", deployment.jobs(), ["COMPLETED"] * jobs)
    check("results", len(deployment.results()), jobs)
    say(f"every run succeeded with one job: {jobs} jobs, all COMPLETED, {jobs} results")
    return jobs


def survives_the_cluster(deployment, jobs):
    """Kill the cluster during a run; return the number of jobs so far."""
    run, jobs = deployment.training(jobs)
    deployment.kill("mini-slurm")
    deployment.wait_until_healthy()
    deployment.ended(run)
    states = deployment.jobs()
    of_run = states[jobs - 1 :]
    say(f"killed mini-slurm during a run: that run succeeded with {len(of_run)} jobs: {', '.join(of_run)}")
    return len(states)


def survives_an_upgrade(deployment, jobs):
    """Restart databases and Redis and replace the image of Airflow during a run, then restart everything."""
    volumes = deployment.docker("volume", "ls", "--quiet")
    run, jobs = deployment.training(jobs)
    deployment.compose("restart", "airflow-db", "store-db", "redis")
    check("the newest job", deployment.jobs()[-1], "RUNNING")
    deployment.version("2")
    deployment.compose("build", "init")
    deployment.compose("up", "--detach", "--no-build", "--scale=worker=2", "init", *AIRFLOW)
    check("the newest job", deployment.jobs()[-1], "RUNNING")
    deployment.wait_until_healthy()
    deployment.ended(run)
    check("jobs", len(deployment.jobs()), jobs)
    version = deployment.compose("exec", "-T", "scheduler", "steptime", "--version").strip()
    check("the version", version, "steptime 2")
    deployment.docker("image", "inspect", "steptime:1")
    say(
        "restarted both PostgreSQL and Redis and upgraded the image during a run: it succeeded with one job; "
        f"now {version}, and steptime:1 is kept"
    )
    deployment.docker("tag", "steptime-mini-slurm:1", "steptime-mini-slurm:2")
    before, known = deployment.results(), deployment.jobs()
    deployment.compose("down")
    check("volumes after down", deployment.docker("volume", "ls", "--quiet"), volumes)
    say(f"down, and all healthy again {deployment.up():.0f} s after up; down left no other volume")
    check("results", deployment.results(), before)
    check("jobs", deployment.jobs(), known)
    deployment.ended(run)  # logs in with the first user's password
    say(f"all {len(before)} results, {len(known)} jobs, the DAG runs and the first user are there")


def main():
    """Run the scenario; return 0 if all of it succeeded, or if no engine can be started."""
    try:
        with engine() as environment, tempfile.TemporaryDirectory(prefix="steptime-compose-") as folder:
            Path(folder).chmod(0o755)
            os.umask(0o022)
            say("a Docker engine answers")
            deployment = Deployment(Path(folder), environment)
            say(f"base images: {', '.join(deployment.values[name] for name in STAND_INS)}")
            try:
                builds_and_starts(deployment)
                jobs = survives_kills(deployment)
                jobs = survives_the_cluster(deployment, jobs)
                survives_an_upgrade(deployment, jobs)
            finally:
                deployment.compose("down", "--volumes", "--timeout=10")
    except NoEngineError as error:
        print(f"{'=' * 100}\nSKIPPED, NOTHING WAS TESTED: {error}\n{'=' * 100}", file=sys.stderr)
        return 0
    except (SystemFailure, UserError) as error:
        say(f"FAILED: {error}")
        return 1
    say("everything succeeded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
