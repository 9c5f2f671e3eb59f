"""The connection type `runai`: Airflow lists it, tests it, and passes it to clusters."""

import pytest
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.models import Connection
from stand_ins.runai import RunaiStandIn

from steptime.airflow.hooks import RunaiHook


@pytest.fixture
def server(tmp_path):
    with RunaiStandIn(tmp_path).running() as stand_in:
        yield stand_in


@pytest.fixture
def keep(monkeypatch, server):
    """Return a function that sets the connection `dgx` as a variable of Airflow's environment."""

    def kept(secret, project):
        connection = Connection(
            conn_id="dgx",
            conn_type="runai",
            host=server.url,
            login=server.application,
            password=secret,
            extra={"project": project},
        )
        monkeypatch.setenv("AIRFLOW_CONN_DGX", connection.get_uri())

    return kept


@pytest.mark.filterwarnings("ignore::airflow.utils.deprecation_tools.DeprecatedImportWarning")  # by Airflow
def test_airflow_offers_the_type_with_its_own_fields():
    """The service asked here gives Airflow's form for connections its fields."""
    offered = {meta.connection_type: meta for meta in HookMetaService.hook_meta_data()}
    form = offered["runai"]
    assert form.hook_name == "Run:ai"
    assert form.standard_fields is not None
    assert form.standard_fields.host is not None
    assert form.standard_fields.host.title == "Base URL"
    assert form.standard_fields.password is not None
    assert form.standard_fields.password.title == "Application secret"
    assert form.standard_fields.port is not None
    assert form.standard_fields.port.hidden
    assert list(form.extra_fields or {}) == ["project"]


@pytest.mark.parametrize(
    ("right", "project", "works", "told"),
    [
        (True, "llm", True, "gives a token and shows project 'llm' (4711)"),
        (True, "", True, "gives a token."),
        (True, "other", False, "shows no project 'other'"),
        (False, "", False, "check the application's name and secret in the connection 'dgx'"),
        (False, "llm", False, "check the application's name and secret in the connection 'dgx'"),
    ],
)
def test_it_can_be_tested(keep, server, right, project, works, told):
    keep(server.secret if right else "hush-hush", project)
    done, message = RunaiHook("dgx").test_connection()
    assert (done, told in message) == (works, True), message
    assert "hush" not in message
    assert server.secret not in message
