"""One Airflow, one Slurm and one login for all drills, and the table of their outcomes at the end."""

import os
from pathlib import Path

import pytest

from drills.site import open_site
from drills.table import OUTCOMES, Outcome, as_markdown, write_down

_OF_PROFILE = {"SQUEUE_PARTITION": "none", "SBATCH_PARTITION": "none", "SBATCH_EXPORT": "NONE"}
"""Variables that the login's profile sets, as at some sites; steptime must not follow them."""


@pytest.fixture(scope="package")
def site(slurm_of_session):
    on_postgresql = os.environ.get("DRILL_STORE") == "postgresql"
    with open_site(slurm_of_session, _OF_PROFILE, on_postgresql=on_postgresql) as opened:
        yield opened


def pytest_runtest_logreport(report):
    """Keep each drill's outcome, in the process that gets all reports."""
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        for name, value in report.user_properties:
            if name == "drill":
                write_down(Outcome(*value))


def pytest_terminal_summary(terminalreporter):
    if OUTCOMES:
        terminalreporter.section("drills")
        terminalreporter.write_line(as_markdown(OUTCOMES))


def pytest_collection_modifyitems(items):
    """Move drills to the end, as they stop daemons that other tests share."""
    here = Path(__file__).parent
    items.sort(
        key=lambda item: item.path.is_relative_to(here) and item.get_closest_marker("drill") is not None
    )
