"""The task that mails the report: what it refuses. `end_to_end/test_pages.py` sends one."""

import pytest
from free_ports import free_port

from steptime.airflow.send_report import send_report_dag
from steptime.airflow.versions import AirflowException

pytestmark = pytest.mark.long


def test_a_mail_server_that_is_away_is_named(make_context, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", f"smtp://127.0.0.1:{free_port()}?disable_ssl=true")
    task = send_report_dag("send_report").get_task("send_report")
    with pytest.raises(AirflowException, match=r"not sent through the connection 'smtp_default': .*refused"):
        task.execute({**make_context(), "params": {"to": ["one@example.com"], "days": 7}})
