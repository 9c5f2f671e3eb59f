"""Paths: the folder of all state, and the shipped configuration, DAGs and trainer."""

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from steptime.errors import SystemFailure, UserError, one_line
from steptime.files import read_limited

_CHECKOUT = Path(__file__).resolve().parents[2]

_CONFIG_FILES = ("gpus.yaml", "flops.yaml", "notifications.yaml")
_CONFIG_FOLDERS = ("workloads", "references", "sweeps", "trials", "clusters", "expectations")


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

    It is within the installed package, or in the checkout. Raises SystemFailure if it is missing.
    """
    for root in (Path(__file__).parent / "shipped", _CHECKOUT):
        if (root / folder).is_dir():
            return root / folder
    raise SystemFailure(f"the folder '{folder}' of steptime is missing: reinstall the package")


def config_dir() -> Path:
    """Return the folder of the YAML files that people write: `STEPTIME_CONFIG_DIR`.

    Without that variable it is `config/` of the checkout, or `config/` in the state folder, which may be
    missing, for an installed package. Raises UserError if `STEPTIME_CONFIG_DIR` is not an existing folder.
    """
    if os.environ.get("STEPTIME_CONFIG_DIR"):
        return _existing("STEPTIME_CONFIG_DIR", "config")
    return shipped("config") if shipped("config").parent == _CHECKOUT else home() / "config"


def config_file(name: str) -> Path:
    """Return the path of a file of `config/`, as `clusters/local.yaml`: the team's, else the shipped one.

    If there is neither, the path is the one that the team's file would have.
    """
    written, ours = config_dir() / name, shipped("config") / name
    return ours if ours.exists() and not written.exists() else written


def config_files() -> dict[str, Path]:
    """Return the paths of all YAML files that are read, by their names, such as `clusters/local.yaml`."""
    folders = [f"{folder}/{name}.yaml" for folder in _CONFIG_FOLDERS for name in config_names(folder)]
    paths = {name: config_file(name) for name in (*_CONFIG_FILES, *folders)}
    return {name: path for name, path in paths.items() if path.is_file()}


def config_names(folder: str) -> tuple[str, ...]:
    """Return the stems of the YAML files in a folder of `config_dir` and in the shipped one, sorted.

    Empty if there is no such folder.
    """
    return tuple(sorted({name for root in _config_roots() for name in _yaml_names(root / folder)}))


def replaced_files() -> tuple[str, ...]:
    """Return the names, such as `clusters/local.yaml`, of files in `config_dir` that replace a shipped one.

    Those with the same content are left out.
    """
    ours = shipped("config")
    return tuple(
        name
        for name, path in config_files().items()
        if path != ours / name and (ours / name).exists() and _differ(path, ours / name)
    )


def replaced_sentence() -> str:
    """Say which shipped files the folder of the team's own replaces; empty if it replaces none."""
    names = replaced_files()
    return f"{config_dir()} replaces shipped files: {', '.join(names)}" if names else ""


def _differ(path: Path, shipped_path: Path) -> bool:
    try:
        return read_limited(path) != shipped_path.read_bytes()
    except OSError:  # whoever reads it says what is wrong
        return True


def _config_roots() -> set[Path]:
    return {config_dir(), shipped("config")}


def _yaml_names(folder: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        # A tenth of what `glob` takes: each plan asks.
        yield from (entry.name[:-5] for entry in entries if entry.name.endswith(".yaml"))


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
