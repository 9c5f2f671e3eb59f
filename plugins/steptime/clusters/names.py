"""Job names: plain enough to be a folder, an argument and a label on every kind of cluster."""

import re

from steptime.errors import UserError

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)


def check_job_name(name: str) -> None:
    """Raise UserError if `name` cannot be a job's."""
    if not _JOB_NAME.fullmatch(name):
        raise UserError(
            f"job name {name!r} cannot be used: write letters, digits, '.', '_' and '-', "
            "begin with a letter or digit, at most 200 in all"
        )
