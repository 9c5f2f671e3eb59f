"""`make test-upgrade`: install into an Airflow of others, upgrade while two jobs train, and uninstall.

The commands of install.md for the package, the folder, the DAGs, the upgrade and uninstalling are taken from
the page. Two jobs train on this machine while the package of an older commit is replaced by the newest one,
and Airflow starts again; both must end with a result. Afterwards the DAGs, Variables, connections and plugins
of Airflow are what they were before, and only packages have been added.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from foreign_airflow import NEWEST, ROOT, UV, ForeignAirflow, clean, last_json, run
from free_ports import free_port
from postgresql_service import started_postgresql

OLDER = "c13511ea"
"""The commit to upgrade from, unless another one is named. Its store lacks columns of the newest one."""
PAGE = (ROOT / "docs/reference/install.md").read_text(encoding="utf-8")
DAG = "steptime_llama3.1-25.04"
CLUSTER = """\
name: mycluster
kind: local
gpu_type: cpu
container: none
work_dir: {folder}/work
python: python3.11
slots: 2
exclusive: false
"""
PARAMS = {"size": "tiny", "gpus": "1", "max_steps": 400, "time_limit": "00:45:00"}
"""A job that trains for some minutes, longer than an upgrade takes."""
_WITHIN_S = 1800
_BEGAN = time.monotonic()


def commands(heading, *, block=0):
    """Return a block of commands below a heading of install.md."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[block]


class Installation:
    """An Airflow of other people, in whose shell the page's commands run."""

    def __init__(self, folder, airflow, python, store):
        self.folder, self.store = folder, store
        self.foreign = ForeignAirflow(folder, airflow, python)
        self.foreign.install("pip")
        self.port = free_port()
        exports = commands("2. Folder and database", block=1)
        self.exports = (
            exports.replace("postgresql://steptime:PASSWORD@HOST/steptime", store)
            .replace("/etc/steptime", f"{folder}/etc")
            .replace("export ", "")
        )
        self.environment = clean() | {
            "AIRFLOW_HOME": str(self.foreign.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "PATH": f"{folder}/venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.foreign.home}/config",
            "STEPTIME_HOME": f"{folder}/steptime",
        }

    def bash(self, script):
        """Run a script as a person's shell would; return what it prints. Raises SystemExit if it fails."""
        return run("bash", "-euo", "pipefail", "-c", f"cd {self.folder}\n{script}", **self.environment)

    def install(self, wheel):
        """Install a wheel as step 1 of the page does; return the version that it has then."""
        for old in self.folder.glob("steptime-*.whl"):
            old.unlink()
        wheel.rename(self.folder / wheel.name)
        script = commands("1. The package")
        # The file that ForeignAirflow made, as Airflow's own may be out of reach.
        script, replaced = re.subn(r'"https://\S*constraints\S*"', f"{self.folder}/constraints.txt", script)
        assert replaced == 1, script
        self.bash(script)
        return self.bash("steptime --version").strip()

    def snapshot(self):
        """Return what Airflow has: DAGs, Variables, connections, plugins, settings and packages."""

        def listed(*command):
            return last_json(self.bash(" ".join(["airflow", *command, "--output=json"])))

        self.bash("airflow dags reserialize")
        return {
            "DAGs": {row["dag_id"] for row in listed("dags", "list")},
            "Variables": {row["key"] for row in listed("variables", "list")},
            "connections": {row["conn_id"] for row in listed("connections", "list")},
            "plugins": {row["name"] for row in listed("plugins")},
            "settings": set(self.bash("airflow config list").splitlines()),
            "packages": {f"{name} {version}" for name, version in self.foreign.packages().items()},
        }

    @contextmanager
    def running(self):
        """Run `airflow standalone`, all components; they are stopped at the end."""
        log = self.folder / "airflow.log"
        with log.open("ab") as output:
            airflow = subprocess.Popen(
                [str(self.foreign.program("airflow")), "standalone"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_for("Airflow answers", lambda: self._healthy(airflow, log), 600)
            yield
        finally:
            airflow.send_signal(signal.SIGINT)
            try:
                airflow.wait(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(airflow.pid, signal.SIGKILL)
                airflow.wait()

    def _healthy(self, airflow, log):
        if airflow.poll() is not None:
            raise SystemExit(f"airflow standalone has ended:\n{log.read_text()[-3000:]}")
        probe = (
            "import json, urllib.request as u;"
            f"reply = u.urlopen('http://127.0.0.1:{self.port}/api/v2/monitor/health', timeout=20);"
            "health = json.load(reply);"
            "names = ('scheduler', 'triggerer', 'dag_processor');"
            "raise SystemExit(any(health[name]['status'] != 'healthy' for name in names))"
        )
        command = [str(self.foreign.program("python")), "-c", probe]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def jobs(self):
        """Return name and state of all jobs in the store's ledger, sorted."""
        with psycopg.connect(self.store) as connection:
            rows = connection.execute("SELECT name, state FROM jobs WHERE attempt > 0 ORDER BY name")
            return [(str(name), str(state)) for name, state in rows]

    def training(self):
        """Return how many jobs have printed a step."""
        logs = (self.folder / "work/experiments").rglob("log-*.out")
        return sum("iteration" in log.read_text() for log in logs)

    def dag_runs(self):
        """Return the states of the runs of steptime's DAG."""
        runs = last_json(self.bash(f"airflow dags list-runs {DAG} --output=json"))
        return [row["state"] for row in runs]


def wait_for(what, condition, within_s=_WITHIN_S):
    """Ask every two seconds until the condition holds. Raises SystemExit after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:.0f} s: {what}")
        time.sleep(2)


def wheel_of(commit, folder):
    """Build the wheel of a commit of this repository in a clone of it; return its path."""
    clone = folder / commit
    run("git", "clone", "--quiet", str(ROOT), str(clone))
    run("git", "-C", str(clone), "checkout", "--quiet", commit)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", str(clone / "dist"), str(clone))
    return next((clone / "dist").glob("*.whl"))


def say(sentence):
    """Print a sentence with the minutes since the start."""
    print(f"{(time.monotonic() - _BEGAN) / 60:5.1f} min  {sentence}", flush=True)


def set_up(installation, wheel):
    """Follow steps 1, 2 and 4 of the page with an older wheel."""
    say(f"installed {installation.install(wheel)}")
    etc = f"{installation.folder}/etc"
    installation.bash(commands("2. Folder and database").replace("/etc/steptime", etc))
    installation.environment |= dict(line.split("=", 1) for line in installation.exports.splitlines())
    file = Path(etc) / "config/clusters/mycluster.yaml"
    file.write_text(CLUSTER.format(folder=installation.folder))
    installation.bash(commands("4. The cluster and the DAGs"))
    installation.bash("steptime results")  # makes the tables


def upgrade_while_training(installation, wheel):
    """Start two jobs, replace the package and start Airflow again; both jobs end with a result."""
    with installation.running():
        installation.bash(f"airflow dags reserialize && airflow dags unpause --yes {DAG}")
        for _ in range(2):
            installation.bash(f"airflow dags trigger {DAG} --conf '{json.dumps(PARAMS)}'")
        wait_for("two jobs train", lambda: installation.training() == 2)
        jobs = [name for name, _ in installation.jobs()]
        say(f"two jobs train: {', '.join(jobs)}")
    say(f"Airflow is stopped, and {installation.install(wheel)} is installed")
    with installation.running():
        say("Airflow runs again")
        wait_for("the DAG runs end", lambda: not {"queued", "running"} & set(installation.dag_runs()))
        assert installation.dag_runs() == ["success"] * 2, installation.dag_runs()
    ended = installation.jobs()
    assert [name for name, _ in ended] == jobs, ended
    results = json.loads(installation.bash("steptime results --format=json"))["results"]
    assert sorted(row["job_name"] for row in results) == jobs, results
    say(f"both DAG runs succeeded with the jobs that they had: {ended}")


def uninstall(installation, before):
    """Follow the page's section and compare Airflow with what it was before."""
    installation.bash(commands("Uninstall", block=0))
    installation.bash(commands("Uninstall", block=1))
    after = installation.snapshot()
    for kind, had in before.items():
        gone, new = sorted(had - after[kind]), sorted(after[kind] - had)
        say(f"{kind}: gone {gone or 'nothing'}, new {new or 'nothing'}")
        assert not gone, (kind, gone)
        assert kind in ("packages", "settings") or not new, (kind, new)
    assert not [package for package in after["packages"] if package.startswith("steptime ")]


def main(older=OLDER, airflow="3.1", python="3.11"):
    """Upgrade from a commit in one Airflow: `upgrade.py [COMMIT [AIRFLOW [PYTHON]]]`."""
    airflow, _ = NEWEST.get(airflow, (airflow, ""))
    say(f"Airflow {airflow} on Python {python}, from {older}")
    with TemporaryDirectory(prefix="steptime-") as name, started_postgresql() as server:
        folder = Path(name)
        installation = Installation(folder, airflow, python, server.url)
        installation.bash("airflow variables set theirs 1 && airflow connections add theirs --conn-type http")
        before = installation.snapshot()
        set_up(installation, wheel_of(older, folder))
        upgrade_while_training(installation, wheel_of("HEAD", folder))
        uninstall(installation, before)
    say("everything succeeded")


if __name__ == "__main__":
    main(*sys.argv[1:])
