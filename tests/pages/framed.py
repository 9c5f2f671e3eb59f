"""The pages in an iframe, as Airflow shows them, and how tests read them.

A page stands in for the Airflow UI, with the same iframe and sandbox, and with an optional router.
"""

import json
import re
from html import escape
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from playwright.sync_api import expect

# What Airflow 3.3 puts around a page of a plugin.
AIRFLOW = """<!doctype html><html lang="en" class="light"><head><base href="/"><title>Airflow</title>
<link rel="icon" href="data:,"></head><body>
<iframe title="Step times" src="{address}" style="border:0;width:100%;height:860px"
        sandbox="allow-scripts allow-same-origin allow-forms allow-downloads"></iframe>
<script>
  const routed = {routed};
  if (routed) addEventListener("popstate", () => {{
    document.querySelector("iframe")?.remove();
    document.title = "routed to " + location.pathname;
  }});
</script></body></html>"""

NAVIGATION = "/plugin/step-times/steptime/"
"""The address of Airflow's page around the pages; what follows the view's name belongs to the pages."""
RUNS = f"{NAVIGATION}?view=runs"
TAB = "/dags/steptime_llama3.1-25.04/runs/new/plugin/step-times-of-run?dag_run_id=new"
"""The address of the tab of a DAG run."""


def airflow_around(pages):
    """Return a site that shows the pages as Airflow does."""
    airflow = FastAPI()
    airflow.mount("/steptime", pages)

    @airflow.get("/api/v2/dags/{_dag}/dagRuns/{_run}")
    def dag_run(_dag: str, _run: str) -> dict[str, str]:
        return {"state": "running"}

    @airflow.get("/api/v2/connections")
    def connections() -> dict[str, Any]:
        return {"connections": [], "total_entries": 0}

    @airflow.get("/{path:path}", response_class=HTMLResponse)
    def ui(path: str, request: Request) -> str:
        if "tasks" in path:
            return f"<title>{path}</title><link rel=icon href='data:,'>"
        query = dict(request.query_params)
        routed = query.pop("routed", "true")
        if "dag_run_id" in query:
            query = {"dag_id": "steptime_llama3.1-25.04"} | query
        address = f"steptime/?{urlencode(query)}"
        return AIRFLOW.format(address=escape(address), routed=json.dumps(routed == "true"))

    return airflow


def opened(page, address=RUNS):
    page.goto(address)
    frame = page.frame_locator("iframe")
    expect(frame.locator("#summary")).not_to_have_text("Reading the metrics store …")
    return frame


def column(frame, key):
    """Return the cells of one column, as displayed."""
    index = frame.locator("thead th").evaluate_all(
        "(heads, key) => heads.findIndex((head) => head.dataset.key === key)", key
    )
    assert index >= 0, f"there is no column {key}"
    return frame.locator(f"tbody tr:not(.group) > :nth-child({index + 1})").all_inner_texts()


def number(written):
    return float(written.replace(",", "").replace("−", "-"))


def ending(end):
    """Return a pattern for addresses with this end, which a page may reach some moments later."""
    return re.compile(re.escape(end) + "$")
