"""`make test-versions`: steptime's wheel in an Airflow that other people already use.

This makes an environment with a release of Airflow on a Python, and gives it a DAG, a plugin with a listener
and a policy of other people. The wheel may add steptime's plugin, and its DAGs once in the DAG folder.
It changes nothing else, and no package's version. Then tests of this repository run on the installed wheel.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
TEST_PACKAGES = ("pytest<9.2", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
TESTS = (
    "tests/end_to_end/test_connection.py",
    "tests/end_to_end/test_durability.py",
    "tests/end_to_end/test_sweep.py",
    "tests/end_to_end/test_confirming.py",
)
UV = str(Path(sys.executable).with_name("uv"))
CONSTRAINTS = (
    "https://raw.githubusercontent.com/apache/airflow/constraints-{airflow}/constraints-{python}.txt"
)

NEWEST = {
    "3.1": ("3.1.8", "2026-03-12"),
    "3.2": ("3.2.2", "2026-05-30"),
    "3.3": ("3.3.2", "2026-09-18"),
}
"""The newest release of each supported minor release, and the day after its upload to PyPI.

Its constraints have the packages of about that day.
"""
OLDER_PACKAGES = {
    ("3.1", "3.11"): ("sqlalchemy<2", "pandas<2.2", "numpy<2"),
    ("3.1", "3.12"): ("sqlalchemy<2", "pandas<2.2", "numpy<2"),
    ("3.1", "3.13"): ("sqlalchemy<2",),
}
"""Packages that Airflow's constraints of December 2025 hold below the newest ones of their day."""

DAG_OF_OTHERS = """
from airflow.sdk import DAG, task

with DAG("theirs", schedule=None):

    @task
    def work():
        print("done")

    work()
"""
PLUGIN_OF_OTHERS = """
import sys

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin


@hookimpl
def on_starting(component):
    pass


class Theirs(AirflowPlugin):
    name = "theirs"
    listeners = [sys.modules[__name__]]
"""
POLICY_OF_OTHERS = """
def task_policy(task):
    task.owner = task.owner or "them"
"""
LISTED = """
import importlib.metadata, json
from airflow import settings

groups = ("airflow.plugins", "airflow.policy")
points = {group: sorted(p.value for p in importlib.metadata.entry_points(group=group)) for group in groups}
policies = getattr(settings, "get_policy_plugin_manager", lambda: settings.POLICY_PLUGIN_MANAGER)()  # 3.1
print(json.dumps({"points": points, "policies": sorted(name for name, _ in policies.list_name_plugin())}))
"""


class ForeignAirflow:
    """An environment with an Airflow, and an Airflow home with files of other people."""

    def __init__(self, folder, airflow, python):
        self.folder, self.airflow, self.python = folder, airflow, python
        self.home = folder / "airflow"
        self.constraints = constraints(folder, airflow, python)
        run(UV, "venv", "--quiet", "--python", python, str(folder / "venv"))
        self.install(f"apache-airflow=={airflow}", *self.constraints)
        (self.home / "plugins").mkdir(parents=True)
        (self.home / "dags").mkdir()
        (self.home / "config").mkdir()
        (self.home / "plugins" / "theirs.py").write_text(PLUGIN_OF_OTHERS)
        (self.home / "dags" / "theirs.py").write_text(DAG_OF_OTHERS)
        (self.home / "config" / "airflow_local_settings.py").write_text(POLICY_OF_OTHERS)
        self.call("airflow", "db", "migrate")

    def install(self, *what):
        """Install packages."""
        run(UV, "pip", "install", "--quiet", "--python", str(self.program("python")), *what)

    def packages(self):
        """Return the version of each installed package."""
        told = run(UV, "pip", "list", "--format=json", "--python", str(self.program("python")))
        return {package["name"]: package["version"] for package in json.loads(told)}

    def program(self, name):
        """Return the path of a program of the environment."""
        return self.folder / "venv" / "bin" / name

    def call(self, program, *arguments):
        """Run a program of the environment with this home; return what it prints."""
        return run(
            str(self.program(program)),
            *arguments,
            AIRFLOW_HOME=str(self.home),
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            PYTHONPATH=str(self.home / "config"),
            STEPTIME_HOME=str(self.folder / "steptime"),
        )

    def listed(self):
        """Return the plugins, policies and DAGs that Airflow lists, once it has read the DAGs again."""
        self.call("airflow", "dags", "reserialize")
        self.call("airflow", "dags", "list-import-errors")  # fails if there are any
        plugins = last_json(self.call("airflow", "plugins", "--output=json"))
        dags = last_json(self.call("airflow", "dags", "list", "--output=json"))
        return {
            "plugins": {plugin["name"]: plugin for plugin in plugins},
            "dags": {dag["dag_id"] for dag in dags},
            **last_json(self.call("python", "-c", LISTED)),
        }


def check_guest(foreign, wheel):
    """Install the wheel and compare Airflow before and after. Raises AssertionError."""
    packages, before = foreign.packages(), foreign.listed()
    assert before["plugins"].keys() == {"theirs"}, before["plugins"]
    assert before["plugins"]["theirs"]["listeners"], before["plugins"]
    # As Airflow documents it: naming its version and constraints keeps dependencies from moving them.
    foreign.install(str(wheel), f"apache-airflow=={foreign.airflow}", *foreign.constraints)
    installed = foreign.packages()
    moved = {name: installed.get(name) for name, had in packages.items() if installed.get(name) != had}
    assert not moved, f"installing steptime has changed {moved}"
    for dag in (ROOT / "dags").glob("*.py"):  # as install.md writes them
        shutil.copy(dag, foreign.home / "dags")
    after = foreign.listed()
    ours = after["plugins"].pop("steptime")
    assert after["plugins"] == before["plugins"]
    assert not ours.get("listeners"), ours
    assert not ours.get("fastapi_root_middlewares"), ours
    assert after["policies"] == before["policies"]
    after["points"]["airflow.plugins"].remove("steptime.airflow.plugin:SteptimePlugin")
    assert after["points"] == before["points"]
    assert before["dags"] == {"theirs"}, before["dags"]
    assert {"theirs", "steptime_llama3.1-25.04", "steptime_sweep"} <= after["dags"], after["dags"]
    print(f"  unchanged: plugins {sorted(before['plugins'])} with a listener, policies {before['policies']}")
    print(f"  new: plugin steptime, {len(after['dags'] - before['dags'])} DAGs without an import error")


def constraints(folder, airflow, python):
    """Return the options for the package versions with which Airflow was released.

    If its constraints cannot be reached, these are the newest packages of that day that OLDER_PACKAGES
    allows. Newer ones can break an older Airflow: 3.2.2 does not start with FastAPI 0.165.
    """
    told = os.environ.get("AIRFLOW_CONSTRAINTS", CONSTRAINTS).format(airflow=airflow, python=python)
    file = folder / "constraints.txt"
    try:
        with urllib.request.urlopen(told, timeout=20) as answer:  # noqa: S310 - an address of our own
            file.write_bytes(answer.read())
    except OSError as error:
        released = dict(NEWEST.values()).get(airflow)
        if released is None:
            raise SystemExit(
                f"{told} cannot be read ({error}), and NEWEST has no day of {airflow}"
            ) from error
        older = OLDER_PACKAGES.get((airflow.rpartition(".")[0], python), ())
        print(
            f"  with the packages of {released}, {', '.join(older) or 'none held back'}: "
            f"{told} cannot be read ({error})"
        )
        (wanted := folder / "wanted.txt").write_text("\n".join([f"apache-airflow=={airflow}", *older]))
        options = (
            "--quiet",
            "--no-annotate",
            "--exclude-newer",
            released,
            "--python-version",
            python,
        )
        run(UV, "pip", "compile", *options, "--output-file", str(file), str(wanted))
    return "--constraint", str(file)


def last_json(text):
    """Return the JSON at the end of an output; Airflow may print warnings before it."""
    for index, line in enumerate(lines := text.splitlines()):
        if line.startswith(("[", "{")):
            try:
                return json.loads("\n".join(lines[index:]))
            except ValueError:
                continue
    return []  # Airflow printed "No data found"


def run(*command, **environment):
    """Return what a command prints. Raises SystemExit with its output if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=clean() | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def clean():
    """Return the environment without variables of another Airflow or Python."""
    other = ("AIRFLOW", "_AIRFLOW", "STEPTIME", "VIRTUAL_ENV", "PYTHON", "PYTEST")
    return {name: value for name, value in os.environ.items() if not name.startswith(other)}


def run_tests(foreign, *tests):
    """Run tests of this repository with the environment's Airflow and the installed wheel."""
    foreign.install(*TEST_PACKAGES, *foreign.constraints)
    options = ["-q", "-m", "not browser", "-p", "no:cacheprovider", f"--basetemp={foreign.folder / 'tests'}"]
    python = str(foreign.program("python"))
    done = subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT, env=clean(), check=False)
    if done.returncode:
        raise SystemExit(f"tests failed with Airflow {foreign.airflow} on Python {foreign.python}")


def main(airflow, python, *tests):
    """Try one Airflow on one Python: `foreign_airflow.py AIRFLOW PYTHON [TESTS]`, with options of pytest.

    AIRFLOW is a release, or a minor release for its newest.
    """
    airflow, _ = NEWEST.get(airflow, (airflow, ""))
    began = time.monotonic()
    print(f"Airflow {airflow} on Python {python}", flush=True)
    with TemporaryDirectory(prefix="steptime-") as name:
        folder = Path(name)
        run(UV, "build", "--quiet", "--wheel", "--out-dir", name, str(ROOT))
        foreign = ForeignAirflow(folder, airflow, python)
        check_guest(foreign, next(folder.glob("*.whl")))
        run_tests(foreign, *(tests or TESTS))
    print(f"Airflow {airflow} on Python {python}: passed in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
