"""What a result was made by: versions, the commit of this project and whether its tree was clean."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steptime import __version__
from steptime.clusters.base import Staged
from steptime.results.models import Provenance

_PROJECT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 10


def provenance(
    staged: Staged,
    *,
    options: Mapping[str, Any],
    environment: Mapping[str, str],
    dag_id: str | None,
    dag_run_id: str | None,
    map_index: int | None,
    sweep: str | None = None,
    sweep_run: str | None = None,
) -> Provenance:
    """What a job that is submitted now is made by; commit and state are None outside of a git checkout.

    `options` is what was asked for; those that are None were left to their defaults.
    """
    # An installed package may lie inside somebody else's repository: only that of this very project counts.
    is_checkout = _git("rev-parse", "--show-toplevel") == str(_PROJECT)
    commit = _git("rev-parse", "HEAD") if is_checkout else None
    changes = _git("--no-optional-locks", "status", "--porcelain") if is_checkout else None
    return Provenance(
        steptime_version=__version__,
        git_commit=commit,
        git_clean=None if changes is None else not changes,
        staged=staged,
        options={name: value for name, value in options.items() if value is not None},
        environment=dict(environment),
        dag_id=dag_id,
        dag_run_id=dag_run_id,
        map_index=map_index,
        sweep=sweep,
        sweep_run=sweep_run,
    )


def _git(*arguments: str) -> str | None:
    """The output of git in this project's folder; None if that is in no repository, or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_PROJECT), *arguments],  # noqa: S607 (the user's git, wherever it is)
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
