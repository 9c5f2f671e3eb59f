"""Sends *This week* by mail, when somebody starts it or presses *Send* on the page."""

from steptime.airflow.send_report import send_report_dag

dag = send_report_dag("send_report")
