"""What a result was made by: versions, the commit of this project and whether its tree was clean."""

import subprocess
from pathlib import Path
from typing import Any

from steptime import __version__

_PROJECT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 10


def of_this_code() -> dict[str, Any]:
    """Return the fields of `Provenance` about the steptime that runs here.

    The commit is None outside of a git checkout.
    """
    # An installed package may lie inside somebody else's repository: only that of this very project counts.
    is_checkout = _git("rev-parse", "--show-toplevel") == str(_PROJECT)
    commit = _git("rev-parse", "HEAD") if is_checkout else None
    changes = _git("--no-optional-locks", "status", "--porcelain") if is_checkout else None
    return {
        "steptime_version": __version__,
        "git_commit": commit,
        "git_clean": None if changes is None else not changes,
    }


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
