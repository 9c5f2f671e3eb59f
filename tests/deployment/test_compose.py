"""The team deployment: Compose and its schema accept the files, no secret has a default, the image is locked.

No container is started here: `make test-compose` does that.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from called import captured

from steptime.airflow.params import dag_params
from steptime.recipes.planning import PlanRequest
from steptime.recipes.workloads import load_workload
from steptime.service.standalone_config import write_config

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yaml"
MINI_SLURM_FILE = ROOT / "docker-compose.mini-slurm.yaml"
TLS_FILE = ROOT / "docker-compose.tls.yaml"
SECRETS = {
    "AIRFLOW_DB_PASSWORD": "0a" * 16,
    "STORE_DB_PASSWORD": "1b" * 16,
    "AIRFLOW_FERNET_KEY": "Zm" * 21 + "Y=",
    "AIRFLOW_API_SECRET_KEY": "2c" * 16,
    "AIRFLOW_JWT_SECRET": "3d" * 32,
    "AIRFLOW_ADMIN_PASSWORD": "4e" * 16,
    "REDIS_PASSWORD": "5f" * 16,
}
REQUIRED = {**SECRETS, "STEPTIME_VERSION": "0.2.0"}
AIRFLOW_SERVICES = {"init", "api-server", "scheduler", "dag-processor", "triggerer", "cleanup"}
DATABASES = {"airflow-db", "store-db"}
CELERY_SERVICES = {"redis", "worker"}
VARIANTS = {
    "alone": ((), set()),
    "celery": (("--profile=celery",), CELERY_SERVICES),
    "mini-slurm": ((f"--file={COMPOSE_FILE}", f"--file={MINI_SLURM_FILE}"), {"mini-slurm"}),
    "tls": ((f"--file={COMPOSE_FILE}", f"--file={TLS_FILE}"), {"tls"}),
}
"""By variant: arguments for Compose, and the services that they add."""

Compose = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    """Return a function that runs `docker-compose`, or Compose's plugin, with only the given variables."""
    plugin = "/usr/libexec/docker/cli-plugins/docker-compose"
    for command in (["docker-compose"], [plugin], ["docker", "compose"]):
        # Ubuntu 24.04 has a docker-compose that its Python cannot run.
        if shutil.which(command[0]) and _run([*command, "version"]).returncode == 0:
            break
    else:
        pytest.fail(
            "docker-compose is missing or broken, and this test needs it: apt-get install docker-compose, or "
            "docker-compose-v2 on Ubuntu"
        )
    env_file = tmp_path_factory.mktemp("compose") / "env"

    def run(*arguments, variables=REQUIRED):
        # A file of variables keeps out the .env of whoever runs the test.
        env_file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        return _run([*command, f"--env-file={env_file}", *arguments])

    return run


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return str(request.param)


@pytest.fixture(scope="module")
def resolved(compose, variant):
    """Return the configuration that Compose resolves."""
    done = compose(*VARIANTS[variant][0], "config")
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout))


@pytest.fixture(scope="module")
def services(compose):
    """Return every service, those of Celery and the mini Slurm among them."""
    options = [*VARIANTS["mini-slurm"][0], *VARIANTS["celery"][0]]
    return dict(yaml.safe_load(compose(*options, "config").stdout)["services"])


def test_compose_accepts_the_files(resolved, variant):
    # Compose 1 prints the services of every profile, Compose 2 only those that it would start.
    composed = set(resolved["services"])
    assert (
        composed - (CELERY_SERVICES - VARIANTS[variant][1])
        == AIRFLOW_SERVICES | DATABASES | VARIANTS[variant][1]
    )


def test_the_schema_accepts_the_file_and_what_compose_makes_of_it(resolved, tmp_path):
    copy = tmp_path / "docker-compose.yaml"
    copy.write_text(yaml.safe_dump(resolved), encoding="utf-8")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = _run([*check, str(COMPOSE_FILE), str(MINI_SLURM_FILE), str(TLS_FILE), str(copy)])
    assert done.returncode == 0, done.stdout + done.stderr


def test_airflow_looks_into_a_file_for_logins_only_beside_the_mini_slurm(resolved, variant):
    """In all other variants no missing file may replace a team's own secrets backend."""
    for name in set(resolved["services"]) & (AIRFLOW_SERVICES | {"worker"}):
        told = [key for key in resolved["services"][name]["environment"] if "SECRETS" in key]
        assert bool(told) is (variant == "mini-slurm" and name not in ("init", "cleanup")), name


@pytest.mark.parametrize("unset", ["STEPTIME_VERSION", *list(SECRETS)[:1]])
def test_a_secret_or_version_that_is_unset_stops_the_start(compose, unset):
    done = compose("config", variables={name: value for name, value in REQUIRED.items() if name != unset})
    assert done.returncode != 0
    assert f"set {unset}, see docs/reference/team-deployment.md" in done.stdout + done.stderr


def test_only_the_api_server_is_reachable_and_only_from_this_machine(services):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["api-server"]
    assert "127.0.0.1" in str(published["api-server"])


def test_the_mini_slurm_and_airflow_share_state_user_and_packages(services):
    """Airflow finds the login in a shared file, whose key only the same user can read."""
    slurm, scheduler = services["mini-slurm"], services["scheduler"]
    for service in (slurm, scheduler):
        assert ("steptime-home", "/opt/steptime/home", False) in map(_mount, service["volumes"])
    kept = json.loads(scheduler["environment"]["AIRFLOW__SECRETS__BACKEND_KWARGS"])["connections_file_path"]
    assert Path(kept).relative_to("/opt/steptime/home") == Path("airflow/connections.json")
    assert f"--ssh-host {slurm['hostname']}" in slurm["command"][0]


def test_work_that_names_no_cluster_never_trains_in_the_containers_of_airflow(services, monkeypatch):
    for name in AIRFLOW_SERVICES | {"worker"}:
        assert services[name]["environment"]["STEPTIME_DEFAULT_CLUSTER"] == "mini-slurm", name

    def clusters():
        form = dag_params(load_workload("llama3.1"), {})
        return PlanRequest(workload="llama3.1").cluster, form["cluster"].value

    assert clusters() == ("local", "local")
    monkeypatch.setenv("STEPTIME_DEFAULT_CLUSTER", "mini-slurm")
    assert clusters() == ("mini-slurm", "mini-slurm")


def test_a_busy_machine_neither_ends_running_tasks_nor_loses_the_dags(services, monkeypatch, tmp_path):
    """Compose has the limits that `steptime up` sets."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    config = configparser.ConfigParser(interpolation=None)
    config.read(write_config(8080))
    for section, option in (
        ("scheduler", "scheduler_health_check_threshold"),
        ("scheduler", "orphaned_tasks_check_interval"),
        ("core", "dagbag_import_timeout"),
        ("dag_processor", "dag_file_processor_timeout"),
        ("workers", "min_heartbeat_interval"),
        ("workers", "execution_api_retries"),
    ):
        variable = f"AIRFLOW__{section}__{option}".upper()
        for name in AIRFLOW_SERVICES | {"worker"}:
            assert services[name]["environment"][variable] == config.get(section, option), (name, variable)


def test_a_database_that_is_being_made_is_not_healthy(services):
    """When first started, the image runs a temporary server that listens on its socket alone.

    docker-library/postgres 6edb0a8c, 16/bookworm/docker-entrypoint.sh, docker_temp_server_start.
    """
    for name in DATABASES:
        assert "pg_isready --host=127.0.0.1 " in services[name]["healthcheck"]["test"][1], name


def test_secrets_are_no_arguments(services):
    for name, service in services.items():
        said = str([service.get(part) for part in ("entrypoint", "command", "healthcheck", "build")])
        assert not [secret for secret, value in SECRETS.items() if value in said], name


def test_what_the_image_copies_is_there_and_let_through():
    let_through = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in let_through
    copies = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    for source in " ".join(copies).split():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in let_through, source


def _run(command):
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return captured(command, cwd=ROOT, env=environment, timeout=60)


def _mount(volume):
    """Return source, target, and whether it is read-only; Compose 1 prints a volume's short form."""
    if isinstance(volume, str):
        source, target, mode = volume.split(":")
        return source, target, mode == "ro"
    return volume["source"], volume["target"], volume.get("read_only", False)
