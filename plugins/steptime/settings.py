"""Where things are: the one folder that holds all state, and the shipped config, DAGs and trainer."""

import os
import sys
from pathlib import Path

from steptime.errors import SystemFailure

_CHECKOUT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The state folder: `STEPTIME_HOME`, by default `.steptime/` in the checkout (or below the current folder)."""
    configured = os.environ.get("STEPTIME_HOME")
    if configured:
        return Path(configured).expanduser().resolve()
    base = _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else Path.cwd()
    return base / ".steptime"


def shipped(folder: str) -> Path:
    """The folder `config`, `dags` or `trainer`: of the checkout, or of the installed distribution."""
    for root in (_CHECKOUT, Path(sys.prefix) / "share" / "steptime"):
        if (root / folder).is_dir():
            return root / folder
    raise SystemFailure(f"the folder '{folder}' of steptime is missing: reinstall the package")


def config_dir() -> Path:
    """The folder of YAML files: `STEPTIME_CONFIG_DIR`, by default the shipped `config/`."""
    configured = os.environ.get("STEPTIME_CONFIG_DIR")
    return Path(configured).expanduser().resolve() if configured else shipped("config")


def airflow_home() -> Path:
    """Airflow's own home, inside the state folder."""
    return home() / "airflow"


def experiments_dir() -> Path:
    """Where runs of the local cluster write, laid out as the recipe documents do."""
    return home() / "experiments"


def store_url() -> str:
    """SQLAlchemy address of the metrics store: `STEPTIME_STORE_URL`, by default SQLite in the state folder."""
    return os.environ.get("STEPTIME_STORE_URL") or f"sqlite:///{home() / 'store' / 'steptime.db'}"
