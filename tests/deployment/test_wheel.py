"""The wheel alone, in an environment outside of the checkout, where nothing but the package is installed."""

import json
import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from called import captured

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
OWN_DAG = """\
from steptime.airflow.dag_builder import training_dag

dag = training_dag("nightly", workload="llama3.1", schedule="0 3 * * *", default_args={"owner": "ada"})
"""
READ_DAGS = """\
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from steptime.settings import dags_dir
found = {}
for folder in (dags_dir(), Path(sys.argv[1])):
    bag = DagBag(folder, bundle_path=folder, bundle_name="tests")
    assert not bag.import_errors, bag.import_errors
    found |= {name: sorted({task.owner for task in dag.tasks}) for name, dag in bag.dags.items()}
print(json.dumps({"dags": found, "provider": "steptime" in ProvidersManager().providers}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the programs of an environment with the built wheel and the packages of this environment.

    They are links: installed again, Airflow would be compiled again.
    """
    folder = tmp_path_factory.mktemp("wheel")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    python = str(folder / "venv" / "bin" / "python")

    def run(*arguments):
        done = captured([uv, *arguments], cwd=folder)
        assert done.returncode == 0, done.stderr

    run("build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("steptime-*.whl")
    run("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    [packages] = (folder / "venv" / "lib").glob("python3*/site-packages")
    shutil.copytree(
        sysconfig.get_path("purelib"),
        packages,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("steptime*", "_steptime*", "_editable_impl_steptime*", "_virtualenv*"),
        dirs_exist_ok=True,
    )
    # With its dependencies, which are installed: the wheel's requirements must fit the locked versions.
    run("pip", "install", "--quiet", "--offline", "--python", python, str(wheel))
    return folder / "venv" / "bin"


def outside(environment, here, *command):
    """Run a program of the environment in an empty folder, without this process's settings."""
    clean = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    clean |= {"PATH": f"{environment}{os.pathsep}/usr/bin:/bin", "AIRFLOW_HOME": str(here / "airflow")}
    argv = [str(environment / command[0]), *command[1:]]
    done = captured(argv, cwd=here, env=clean)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_wheel_alone_has_recipes_plans_and_the_demo(environment, tmp_path):
    published = outside(environment, tmp_path, "steptime", "recipes", "--published", "--format", "csv")
    printed = (ROOT / "config" / "references" / "configurations.csv").read_text()
    assert published.count("\n") == printed.count("\n") > 100
    [first, *_] = json.loads(
        outside(environment, tmp_path, "steptime", "plan", "llama3.1", "--format", "json")
    )["runs"]
    assert first["label"] == "tiny·fp32·1"
    assert "Examples" in outside(environment, tmp_path, "steptime", "demo", "--help")
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_its_data_is_found_wherever_the_package_is(environment, tmp_path):
    """As after `pip install --user`, or in Debian's own Python, where nothing is below `sys.prefix`."""
    [wheel] = environment.parents[1].glob("steptime-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "elsewhere")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere')!r}); sys.argv = ['steptime', 'plan', "
        "'llama3.1', '--gpus', '1', '--format', 'csv']; from steptime.cli import main; main()"
    )
    assert "tiny·fp32·1" in outside(environment, tmp_path, "python", "-c", program)


def test_its_dags_and_one_of_ones_own_are_read(environment, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(OWN_DAG)
    shown = outside(environment, tmp_path, "python", "-c", READ_DAGS, str(tmp_path / "own"))
    told = json.loads(shown.splitlines()[-1])
    shipped = {"steptime_llama3.1-25.04", "steptime_nemotron-h-25.05", "steptime_sweep"}
    assert {"nightly", *shipped} <= told["dags"].keys()
    assert told["dags"]["nightly"] == ["ada"]
    assert told["provider"]
