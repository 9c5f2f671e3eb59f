"""Paths: the folder of all state, and the shipped configuration, DAGs and trainer."""

import functools
import os
import sys
from pathlib import Path

from steptime.errors import SystemFailure, UserError, one_line

_CHECKOUT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """Return the state folder: `STEPTIME_HOME`, else `.steptime/` in the checkout (or the current folder).

    It need not exist. Raises UserError if it cannot be a folder.
    """
    configured = os.environ.get("STEPTIME_HOME")
    if configured:
        return _folder("STEPTIME_HOME", configured)
    base = _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else Path.cwd()
    return base / ".steptime"


@functools.cache
def shipped(folder: str) -> Path:
    """Return the path of a folder that ships with steptime: `config`, `dags` or `trainer`.

    It is in the checkout or in the installed distribution. Raises SystemFailure if it is missing.
    """
    for root in (_CHECKOUT, Path(sys.prefix) / "share" / "steptime"):
        if (root / folder).is_dir():
            return root / folder
    raise SystemFailure(f"the folder '{folder}' of steptime is missing: reinstall the package")


def config_dir() -> Path:
    """Return the folder of the YAML files: `STEPTIME_CONFIG_DIR`, else the shipped `config/`.

    Raises UserError if `STEPTIME_CONFIG_DIR` is not an existing folder.
    """
    return _existing("STEPTIME_CONFIG_DIR", "config")


def _existing(variable: str, otherwise: str) -> Path:
    """Return the existing folder that a variable names, or the shipped one if it is not set."""
    configured = os.environ.get(variable)
    if not configured:
        return shipped(otherwise)
    folder = _folder(variable, configured)
    if not folder.exists():
        raise UserError(
            f"{variable} '{one_line(configured)}' does not exist: name a folder like {otherwise}/."
        )
    return folder


def _folder(variable: str, text: str) -> Path:
    """Return the folder that a variable names; it may be missing. Raises UserError if it is no folder."""
    try:
        path = Path(text).expanduser().resolve()
        if not path.exists() or path.is_dir():
            return path
        problem = "it is a file"
    except (OSError, RuntimeError) as error:
        problem = getattr(error, "strerror", None) or str(error).rstrip(".")
    raise UserError(f"{variable} '{one_line(text)}' cannot be used as a folder: {problem}.")


def dags_dir() -> Path:
    """Return the folder of DAG files for `steptime up`: `STEPTIME_DAGS_DIR`, else the shipped `dags/`.

    Raises UserError if `STEPTIME_DAGS_DIR` is not an existing folder.
    """
    return _existing("STEPTIME_DAGS_DIR", "dags")


def airflow_home() -> Path:
    """Return Airflow's own home, inside the state folder."""
    return home() / "airflow"


def collected_logs_dir() -> Path:
    """Return the folder with copies of logs from clusters whose files this machine cannot open."""
    return home() / "logs-collected"


def imported_dir() -> Path:
    """Return the folder with the logs of imported runs."""
    return home() / "imported"


def default_cluster() -> str:
    """Return the name of the default cluster: `STEPTIME_DEFAULT_CLUSTER`, else `local` (this machine)."""
    return os.environ.get("STEPTIME_DEFAULT_CLUSTER") or "local"


def store_url() -> str:
    """Return the SQLAlchemy address of the store: `STEPTIME_STORE_URL`, else SQLite in the state folder."""
    return os.environ.get("STEPTIME_STORE_URL") or f"sqlite:///{home() / 'store' / 'steptime.db'}"
