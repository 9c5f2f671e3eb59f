"""The pages without Airflow: mounted and framed as Airflow does, with a stand-in for its auth manager."""

import socket
import threading
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import stored

from ..airflow import airflow_home  # noqa: F401, TID252 (before anything imports Airflow)

# isort: split

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # caused by Airflow's own imports
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api import security
    from airflow.api_fastapi.core_api.security import get_user

from browser import chromium, watched_page
from pages.framed import airflow_around
from sixty_cells import SEEDS, SWEEP_DAG

from steptime.pages.server import app as web
from steptime.pages.server import permissions
from steptime.recipes.models import Mode
from steptime.store.run_queries import Store


@dataclass
class AuthManager:
    """A stand-in that says which DAGs the one user may read, and which DAGs' runs the user may edit."""

    readable: set[str] = field(default_factory=lambda: {"steptime_llama3.1-25.04"})
    editable: set[str] = field(default_factory=lambda: {"steptime_llama3.1-25.04"})

    def get_authorized_dag_ids(self, *, user, method):
        assert method == "GET"
        return self.readable

    def is_authorized_dag(self, *, method, access_entity, details, user):
        assert (method, access_entity) == ("PUT", DagAccessEntity.RUN)
        assert details.team_name == _team(str(details.id))
        return details.id is None or details.id in self.editable  # no id asks for any DAG


def _team(dag_id):
    return f"the team of {dag_id}"


@pytest.fixture
def auth_manager(monkeypatch):
    manager = AuthManager()
    monkeypatch.setattr(permissions, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", _team)
    return manager


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return the metrics store that the pages read, which is empty."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.delenv("STEPTIME_STORE_URL", raising=False)
    return Store()


@pytest.fixture
def half_year(sixty_cells, store, auth_manager, monkeypatch):
    """Let the pages read the half year of 60 cells with planted changes, and the user the sweep's DAG."""
    stores = sixty_cells(SEEDS[0])
    monkeypatch.setenv("STEPTIME_STORE_URL", stores.planted)
    auth_manager.readable |= {SWEEP_DAG}
    auth_manager.editable |= {SWEEP_DAG}
    return stores


@pytest.fixture
def pages(
    application,
    auth_manager,
    store,
):
    """Return the pages as a logged-in user gets them."""
    application.dependency_overrides = {get_user: lambda: SimpleNamespace(get_name=lambda: "somebody")}
    return application


@pytest.fixture(scope="session")
def application():
    """Return the application, made once in 0.1 s of CPU; of a test it keeps only the overrides."""
    return web.create_app()


@pytest.fixture
def publish(store, make_result):
    """Return a function that stores a result, as valid or as rejected if its verdict says so."""

    def put(job_name, **options):
        stored.write(store, result := make_result(job_name, **options))
        return result

    return put


@pytest.fixture
def serve():
    """Yield a function that serves an application at the address it returns, until the test ends."""
    import uvicorn

    running = []

    def start(app):
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def site(pages, serve):
    return serve(airflow_around(pages))


@pytest.fixture
def watched(browser, site):
    with watched_page(browser, site, timezone_id="UTC") as watched:
        yield watched
        assert not watched.foreign
        assert not watched.complaints


@pytest.fixture
def page(watched):
    return watched.page


@pytest.fixture
def sweep(publish):
    """Publish a DAG run at 1, 2 and 4 ranks with a checkpoint pair, and an older one of another size."""
    for index, gpus in enumerate((1, 2, 4)):
        publish(f"run-{gpus}", gpus=gpus, dag_run_id="new", map_index=index)
    publish("save", mode=Mode.CHECKPOINT_SAVE, dag_run_id="new")
    publish("load", mode=Mode.CHECKPOINT_LOAD, dag_run_id="new")
    publish("older", size="small", gpus=2, step_times=[12.5] * 20, dag_run_id="old", submitted_at=1.78e9)
