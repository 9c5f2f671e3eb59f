"""One Airflow, one Slurm and one login for all drills, and the table of their outcomes at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.login_node import LoginNode
from drills.site import Gate, Site, running_airflow, small_disk
from drills.table import OUTCOMES, as_markdown
from slurm_service import MiniSlurm


@pytest.fixture(scope="session")
def site(slurm_of_session: MiniSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("site")
    gates = folder / "gates"
    gates.mkdir()
    login = LoginNode(slurm_of_session, folder / "login")
    try:
        with (
            small_disk(home / "store"),
            running_airflow(home, folder, login, Gate(gates, "training")) as airflow,
        ):
            yield Site(airflow, slurm_of_session, login, gates)
    finally:
        login.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if OUTCOMES:
        terminalreporter.section("drills")
        terminalreporter.write_line(as_markdown(OUTCOMES))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drills last of all: they take daemons down that other tests share."""
    here = Path(__file__).parent
    items.sort(
        key=lambda item: item.path.is_relative_to(here) and item.get_closest_marker("drill") is not None
    )
