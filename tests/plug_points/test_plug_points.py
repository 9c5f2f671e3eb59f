"""A package from outside adds one of everything without a change to steptime's files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = Path(__file__).with_name("outside")
IN_PYTHON = """
import json, sys
from steptime.clusters.base import StagedFiles
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_spec
from steptime.recipes.planning import PlanRequest, plan
from steptime.store.run_models import Result
from steptime.measure.quality import validate
from trainer.families import builder, check_family

asked = PlanRequest(workload="acme", size="tiny", gpus="1", cluster="far", queue="fast", share=0.25)
(run,) = plan(asked).runs
staged = StagedFiles(
    python=None, venv_lock_sha256=None, trainer_path="/trainer", trainer_sha256="0" * 64, image_path="/i.sif"
)
done = Result.model_validate_json(sys.stdin.read())
verdict = validate(done.run, done.status, done.log, done.measurement)
check_family(run.recipe.model.architecture, run.recipe.backend)
print(json.dumps({
    "options": run.cluster_options,
    "script": job_spec(run, staged, load_cluster("far"), identity="x", started=0).script,
    "checks": {check.name: check.message for check in verdict.warnings},
    "model": builder("acme")(run.recipe.model, "cpu", {}),
}))
"""


@pytest.fixture
def outside(tmp_path):
    """Return a function that runs Python where ACME's package is installed; `stdin` is its input."""
    site, config = tmp_path / "site", tmp_path / "config"
    shutil.copytree(OUTSIDE / "acme_plugs", site / "acme_plugs")
    about = site / "acme_plugs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-plugs\nVersion: 1.0\n")
    shutil.copy(OUTSIDE / "entry_points.txt", about)
    shutil.copytree(ROOT / "config", config)
    shipped = (config / "workloads" / "llama3.1-25.04.yaml").read_text()
    (config / "workloads" / "acme-1.0.yaml").write_text(
        shipped.replace("workload: llama3.1-25.04", "workload: acme-1.0")
        .replace("flops_formula: llama3.1-25.04", "flops_formula: acme-1")
        .replace("architecture: llama", "architecture: acme")
        .replace("num_query_groups: 8", "num_query_groups: 1")
        .replace("num_query_groups: 4", "num_query_groups: 1")
    )
    with (config / "flops.yaml").open("a") as formulas:
        formulas.write("acme-1: {source: ACME, architectures: [acme], logged: true}\n")
    (config / "clusters" / "far.yaml").write_text(
        "name: far\nkind: acme\ngpu_type: cpu\nwork_dir: /far\nslots: 4\ncontainer: acmebox\n"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{site}:{ROOT}",
        "STEPTIME_CONFIG_DIR": str(config),
        "STEPTIME_HOME": str(tmp_path / "home"),
    }

    def run(*argv, stdin=""):
        return subprocess.run(
            [sys.executable, *argv],
            input=stdin,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.service
def test_one_of_everything_is_added_from_outside(outside, make_result):
    done = outside("-c", IN_PYTHON, stdin=make_result().model_dump_json(exclude={"verdict"}))

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 'echo "a job of ACME"' in told["script"]
    assert "exec acmebox run /i.sif" in told["script"]
    assert told["options"] == {"queue": "fast", "share": 0.25}
    assert told["checks"] == {"acme_cheap": "It took 2 GPUs."}
    assert told["model"] == "a model of ACME on cpu"


@pytest.mark.service
def test_a_broken_addition_is_named_with_what_to_do(outside, tmp_path):
    about = tmp_path / "site" / "acme_plugs-1.0.dist-info" / "entry_points.txt"
    entries = about.read_text()
    ask = ("-c", "from steptime.clusters.config import load_cluster; load_cluster('far')")

    about.write_text(entries.replace("acme_plugs.kind", "acme_plugs.gone"))
    assert (
        "kind of cluster 'acme' cannot be loaded from 'acme_plugs.gone': No module named 'acme_plugs.gone'. "
        "Repair or uninstall the package that adds it." in outside(*ask).stderr
    )

    about.write_text(entries.replace("acmebox =", "pyxis ="))
    assert (
        "container 'pyxis', which acme-plugs 1.0 adds, already exists: give it another name"
        in outside(*ask).stderr
    )


@pytest.mark.service
def test_an_option_is_a_flag_of_its_type(outside):
    cli = "from steptime.cli import main; main()"
    described = outside("-c", cli, "plan", "--help").stdout
    [share] = [line.split() for line in described.splitlines() if "--share" in line]
    assert "<float>" in share
    plan = ("-c", cli, "plan", "acme", "--cluster", "far", "--size", "tiny", "--gpus", "1")
    assert outside(*plan, "--share", "0.25").returncode == 0
