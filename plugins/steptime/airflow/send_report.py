"""The DAG that sends *This week* by mail, as one file: what the page's *Send* button starts."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk import DAG, Context, Param

from steptime.airflow.base import RefusingOperator
from steptime.airflow.versions import AirflowException
from steptime.errors import SystemFailure
from steptime.pages.report_file import html, report_since
from steptime.store.run_queries import Store

CONNECTION = "smtp_default"
"""The Airflow connection of the mail server; its extra field `from_email` has the sender."""
_DAYS = 7
_DOCUMENTATION = f"""
Sends *This week* as a file that needs no login, through the connection `{CONNECTION}`. The report has all
runs of the metrics store: whoever may trigger this DAG can send them.
"""


class SendReportOperator(RefusingOperator):
    """Sends the report on the last days to the addresses in the DAG run's params."""

    ui_color: str = "#eef3e2"

    def execute(self, context: Context) -> None:
        """Write the report and send it. Raises AirflowException with the mail server's reason."""
        params: dict[str, Any] = {**context["params"]}
        now = time.time()
        with self.refusals(context), TemporaryDirectory() as folder:
            report = report_since(Store(), now - params["days"] * 86_400)
            file = Path(folder) / "steptime-report.html"
            file.write_text(html(report, now), encoding="utf-8")
            try:
                with SmtpHook(smtp_conn_id=CONNECTION) as hook:
                    hook.send_email_smtp(
                        to=params["to"],
                        subject=f"steptime: {report.of}",
                        html_content="<p>The attached file opens in any browser.</p>",
                        files=[str(file)],
                    )
            except (AirflowException, OSError) as problem:  # SMTPException is an OSError
                raise SystemFailure(
                    f"the report was not sent through the connection '{CONNECTION}': {problem}. Correct the "
                    "connection under Admin → Connections, then clear this task."
                ) from problem
            self.log.info("sent the report of %s to %s", report.of, ", ".join(params["to"]))


def send_report_dag(dag_id: str) -> DAG:
    """Build the manually started DAG that sends the report."""
    with DAG(
        dag_id=dag_id,
        description="Send This week by mail",
        doc_md=_DOCUMENTATION,
        schedule=None,
        is_paused_upon_creation=False,  # the page's button starts it
        params={
            "to": Param(
                [],
                type="array",
                items={"type": "string", "format": "email"},
                minItems=1,
                title="To",
                description="Mail addresses, one a line.",
            ),
            "days": Param(
                _DAYS,
                type="integer",
                minimum=1,
                maximum=3660,
                title="Days",
                description="How many days the report goes back.",
            ),
        },
        tags=["steptime", "report"],
    ) as dag:
        SendReportOperator(task_id="send_report")
    return dag
