"""The Airflow of one machine, configured: `airflow.cfg`, keys and the password, all below the state folder.

Everything is in the file and nothing in the environment, because jobs and tasks inherit environments and keys
must not travel with them. `AIRFLOW__…` variables of the caller belong to another Airflow and are dropped;
`AIRFLOW_CONN_…` and `AIRFLOW_VAR_…` pass.
"""

import base64
import configparser
import io
import json
import os
import secrets
import sys
from pathlib import Path

from steptime import settings
from steptime.files import write_whole
from steptime.service import connection_file

ADMIN = "admin"
"""The one user of the standalone Airflow."""
_DATABASE_PATIENCE_S = 60
"""How long a writer of Airflow's SQLite waits for the others, which write one at a time.

Who waits longer fails, and a triggerer ends of it: with Python's five seconds that was seen when three
hundred tasks began at once.
"""


def write_config(port: int) -> Path:
    """Write `airflow.cfg` for an Airflow on 127.0.0.1:`port`; keys and password are made once and kept."""
    root = settings.airflow_home()
    root.mkdir(parents=True, exist_ok=True)
    password()
    connection_file.ensure()
    config = configparser.ConfigParser(interpolation=None)
    config.read_dict(_options(root, port))
    # Airflow interpolates what it reads: a percent sign is written twice.
    for section in config.sections():
        for name, value in config.items(section):
            config.set(section, name, value.replace("%", "%%"))
    text = io.StringIO()
    config.write(text)
    path = root / "airflow.cfg"
    write_whole(path, text.getvalue(), mode=0o600)
    return path


def _options(root: Path, port: int) -> dict[str, dict[str, str]]:
    url = f"http://127.0.0.1:{port}"
    keys = _keys()
    return {
        "core": {
            "dags_folder": str(settings.dags_dir()),
            "plugins_folder": str(root / "plugins"),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            # Airflow's LocalExecutor, with the imports of tasks made once.
            "executor": "steptime.airflow.executor.PreloadedExecutor",
            "hostname_callable": f"{__name__}.{hostname.__name__}",
            # Waiting tasks are deferred and hold no slot; two cores are busy with fewer than six.
            "parallelism": str(max(6, os.cpu_count() or 1)),
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_users": f"{ADMIN}:admin",
            "simple_auth_manager_passwords_file": str(_passwords_file()),
            "fernet_key": keys["fernet_key"],
        },
        # Connections that steptime makes itself, such as to the mini Slurm; asked before the database.
        "secrets": {
            "backend": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "backend_kwargs": json.dumps({"connections_file_path": str(connection_file.path())}),
        },
        "database": {"sql_alchemy_conn": database_address(root)},
        "api": {
            "host": "127.0.0.1",
            "port": str(port),
            "base_url": url,
            "workers": "1",
            "instance_name": "steptime",
            "secret_key": keys["api_secret_key"],
        },
        "api_auth": {"jwt_secret": keys["jwt_secret"]},
        "logging": {
            "base_log_folder": str(root / "logs"),
            # Logs of running tasks are read from the folder, but Airflow also asks the log server that does
            # not run here (see `supervisor.COMPONENTS`), and complains each time. On port 1 nobody listens.
            "worker_log_server_port": "1",
            "trigger_log_server_port": "1",
            "namespace_levels": "airflow.utils.log.file_task_handler=CRITICAL",
        },
        # With the default of 5 s, a task that defers at once may be judged "finished while queued" and fail.
        "workers": {
            "min_heartbeat_interval": "1",
            # Tasks ask on while the api-server is started again, which the supervisor may put off for a
            # minute: for two to four minutes. By default they fail after 4 to 15 s, and again in each retry.
            "execution_api_retries": "120",
            "execution_api_retry_wait_min": "1",
            "execution_api_retry_wait_max": "2",
        },
        "scheduler": {
            # Its executor waits in place of that, and not longer than until a task ends.
            "scheduler_idle_sleep_time": "0",
            # A task whose worker was killed is tried again after a minute instead of five.
            "task_instance_heartbeat_timeout": "60",
            # Nor do tasks of a scheduler that was killed wait for five minutes: only this check finds them.
            "orphaned_tasks_check_interval": "30",
        },
        "dag_processor": {
            # A changed DAG file is parsed at once whatever the interval. Parsing unchanged ones again and
            # again would take time from the cores that training is measured on.
            "min_file_process_interval": "300",
            "refresh_interval": "30",
        },
    }


def database_address(root: Path) -> str:
    """Return the address of Airflow's SQLite in a folder."""
    return f"sqlite:///{root / 'airflow.db'}?timeout={_DATABASE_PATIENCE_S}"


def hostname() -> str:
    """Return this machine's name for Airflow's processes, found without asking a name server."""
    return "localhost"


def child_environment() -> dict[str, str]:
    """Return the environment of Airflow's processes: the state's place, and this Python's programs first."""
    # Images often set the last: every process would compile Airflow and Great Expectations anew, for seconds.
    mine = {"AIRFLOW_HOME", "AIRFLOW_CONFIG", "PYTHONDONTWRITEBYTECODE"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in mine and not name.startswith(("AIRFLOW__", "_AIRFLOW_"))
    }
    programs = str(Path(sys.executable).parent)
    # Airflow's components talk to each other over loopback, where no proxy is of use.
    direct = ",".join(filter(None, (kept.get("no_proxy") or kept.get("NO_PROXY"), "127.0.0.1,localhost")))
    return kept | {
        "no_proxy": direct,
        "NO_PROXY": direct,
        "AIRFLOW_HOME": str(settings.airflow_home()),
        "STEPTIME_HOME": str(settings.home()),
        "PATH": os.pathsep.join((programs, kept.get("PATH", os.defpath))),
        "PYTHONUNBUFFERED": "1",
    }


def password() -> str:
    """Return the admin's password, made at the first call and kept in a file only its owner can read."""
    path = _passwords_file()
    passwords: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    if ADMIN not in passwords:
        passwords[ADMIN] = secrets.token_urlsafe(12)
        write_whole(path, json.dumps(passwords), mode=0o600)
    return passwords[ADMIN]


def _passwords_file() -> Path:
    return settings.airflow_home() / "passwords.json"


def _keys() -> dict[str, str]:
    path = settings.airflow_home() / "keys.json"
    if path.is_file():
        keys: dict[str, str] = json.loads(path.read_text())
        return keys
    keys = {
        # What cryptography.fernet.Fernet.generate_key() does: 32 random bytes in URL-safe base64.
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(64),
        "api_secret_key": secrets.token_urlsafe(32),
    }
    write_whole(path, json.dumps(keys), mode=0o600)
    return keys
