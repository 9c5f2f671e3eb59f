"""The configuration of this machine's Airflow: `airflow.cfg`, keys and the password, in the state folder.

Everything is in the file and nothing in the environment, because jobs and tasks inherit the environment and
must not see the keys. The caller's `AIRFLOW__…` variables belong to another Airflow and are dropped;
`AIRFLOW_CONN_…` and `AIRFLOW_VAR_…` are passed on.
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
_DATABASE_PATIENCE_S = 20
"""How long a writer of Airflow's SQLite waits for other writers before it fails with "database is locked".

SQLite has one writer at a time. With Python's default of 5 s, a triggerer exits if many tasks start at once.
Airflow's api-server can block for this long (docs/reference/team-deployment.md), so the time must be below
the heartbeat limits.
"""


def write_config(port: int) -> Path:
    """Write `airflow.cfg` for an Airflow on 127.0.0.1:`port` and return its path.

    Keys and password are created once and kept.
    """
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
            # With the default of 30 s, a machine whose cores all train may have no DAG until the file is read
            # again, after `min_file_process_interval`. `dag_file_processor_timeout` must be longer.
            "dagbag_import_timeout": "180",
            # The default asks a name server, in each task.
            "hostname_callable": "socket.gethostname",
            # Every running task writes to SQLite. Tasks that wait for jobs are deferred and do not count.
            "parallelism": "6",
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_users": f"{ADMIN}:admin",
            "simple_auth_manager_passwords_file": str(_passwords_file()),
            "fernet_key": keys["fernet_key"],
        },
        # Connections that steptime makes itself, for example to the mini Slurm. They precede the database's.
        "secrets": {
            "backend": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "backend_kwargs": json.dumps({"connections_file_path": str(connection_file.path())}),
        },
        "database": {"sql_alchemy_conn": database_address(root)},
        "api": {
            "host": "127.0.0.1",
            "port": str(port),
            "base_url": url,
            "instance_name": "steptime",
            "secret_key": keys["api_secret_key"],
        },
        "api_auth": {"jwt_secret": keys["jwt_secret"]},
        "logging": {
            "base_log_folder": str(root / "logs"),
            # Logs are read from the folder. Airflow also asks log servers, which are not started here (see
            # `supervisor.COMPONENTS`), and logs an error each time. Nothing listens on port 1.
            "worker_log_server_port": "1",
            "trigger_log_server_port": "1",
            "namespace_levels": "airflow.utils.log.file_task_handler=CRITICAL",
        },
        "workers": {
            # With the default of 5 s, a task that defers at once may fail as "finished while queued".
            "min_heartbeat_interval": "1",
            # Tasks repeat their requests for two to four minutes while the api-server is restarted, which
            # the supervisor may delay by a minute. By default they fail after 4 to 15 s.
            "execution_api_retries": "120",
            "execution_api_retry_wait_min": "1",
            "execution_api_retry_wait_max": "2",
        },
        "scheduler": {
            "scheduler_idle_sleep_time": "0.5",
            # A task whose worker was killed is retried after a minute instead of five.
            "task_instance_heartbeat_timeout": "60",
            # The same for the tasks of a scheduler that was killed: only this check finds them.
            "orphaned_tasks_check_interval": "30",
            # With the default of 30 s, a scheduler that is late on a busy machine takes its own running tasks
            # for those of a dead one and kills them, again and again.
            "scheduler_health_check_threshold": "120",
        },
        "dag_processor": {
            # A DAG file that has changed is parsed at once. Parsing unchanged files every 30 s would take CPU
            # from the trainings that are measured on this machine.
            "min_file_process_interval": "300",
            "dag_file_processor_timeout": "240",
            "refresh_interval": "30",
        },
    }


def database_address(root: Path) -> str:
    """Return the URL of Airflow's SQLite database in a folder."""
    return f"sqlite:///{root / 'airflow.db'}?timeout={_DATABASE_PATIENCE_S}"


def child_environment() -> dict[str, str]:
    """Return the environment variables of Airflow's processes: this process's, with the state folder set.

    The PATH begins with this Python's programs, and `AIRFLOW__…` variables are left out.
    """
    # Container images often set the last one: every process would compile Airflow again, for seconds.
    mine = {"AIRFLOW_HOME", "AIRFLOW_CONFIG", "PYTHONDONTWRITEBYTECODE"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in mine and not name.startswith(("AIRFLOW__", "_AIRFLOW_"))
    }
    programs = str(Path(sys.executable).parent)
    # Airflow's components call each other over loopback, not through a proxy.
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
    """Return the password of Airflow's admin, created at the first call, in a private file."""
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
        # The same as cryptography.fernet.Fernet.generate_key(): 32 random bytes in URL-safe base64.
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(64),
        "api_secret_key": secrets.token_urlsafe(32),
    }
    write_whole(path, json.dumps(keys), mode=0o600)
    return keys
