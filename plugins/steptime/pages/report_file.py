"""The pages as one HTML file to send, with their script, style and data; it needs no network."""

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from steptime import __version__
from steptime.judging.comparison import compare_planned, compare_since, compare_sweep_run
from steptime.judging.findings import Comparison
from steptime.judging.series import Series
from steptime.pages import answers
from steptime.store.columns import Row
from steptime.store.run_queries import Store
from steptime.wording import date_and_time

_STATIC = Path(__file__).parent / "static"
_MOST_RUNS = 1000
"""Most rows of the table of runs: browsers are slow with a file of many thousands."""
_MOST_TRENDS = 100
_LONGEST_BEFORE_S = 35 * 86_400.0
"""Largest age difference in seconds of the two sweep runs that the scaling chart compares."""
_MOST_DETAILS = 20
"""Most runs whose details can be opened: records are long."""


@dataclass(frozen=True)
class Report:
    """The content of a report file: the comparison of its cells, and the data that its pages show."""

    of: str
    """What the report covers: `sweep weekly`."""
    comparison: Comparison
    answers: Mapping[str, Any]
    """The answers of the pages' server by address; only addresses of scaling charts have their query."""
    newest: Mapping[str, str]
    """Job name of the run whose trend is in `answers`, by that of an older run that a link names."""


def report_since(store: Store, since: float) -> Report:
    """Make a report on all runs submitted at or after `since` (Unix time)."""
    runs = store.results(since=since, include_rejected=True, limit=_MOST_RUNS, in_reading_order=True)
    together = next(iter(store.measured_together(limit=1)), None)
    is_new = together is not None and together["submitted_at"] >= since
    latest = together["together"] if together and is_new else None
    compared = compare_since(store, since)
    made = _report(
        store, compared, of=f"runs since {date_and_time(since)}", runs=runs, together=latest, since=since
    )
    return replace(made, answers={**made.answers, **_trials(store, since)})


def report_sweep(store: Store, sweep: str) -> Report:
    """Make a report on the newest DAG run of a sweep, or on what is planned if it has no runs.

    Raises UserError if neither the store nor `config/` has the sweep.
    """
    runs = store.newest_sweep_run(sweep)
    compared = compare_sweep_run(store, runs) if runs else compare_planned(store, sweep)
    first = min((row["submitted_at"] for row in runs), default=0.0)
    latest = f"{runs[0]['dag_id']}/{runs[0]['dag_run_id']}" if runs else None
    return _report(store, compared, of=f"sweep {sweep}", runs=runs, together=latest, since=first)


def _report(
    store: Store,
    compared: Comparison,
    *,
    of: str,
    runs: Sequence[Row],
    together: str | None,
    since: float,
) -> Report:
    listed = {row["job_name"] for row in nlargest(_MOST_RUNS, runs, key=itemgetter("submitted_at"))}
    rows = [row for row in runs if row["job_name"] in listed]
    named = {finding.series: finding.run.job_name for finding in compared.findings[:_MOST_TRENDS]}
    labels = {series.label for series in named}
    incidents = [
        incident
        for incident in answers.incidents_since(store, since, _nothing)["incidents"]
        if any(cell["label"] in labels for cell in incident["cells"])
    ]
    total = compared.totals.runs if compared.totals else len(rows)
    answers_by_address = {
        "api/columns": answers.columns(),
        "api/comparison": answers.comparison(store, compared),
        "api/incidents": {"incidents": incidents},
        "api/results": answers.results(rows) | {"matching": total, "all": total, "choices": {}},
        "api/series": answers.series(store, named.values()),
        "api/trials": {"trials": []},
    }
    answers_by_address |= _scaling(store, together)
    answers_by_address |= {
        f"api/trend/{job}": answers.series_trend(store, series, False) for series, job in named.items()
    }
    answers_by_address |= {
        f"api/runs/{row['job_name']}": answers.run(store, row, _nothing) for row in _opened(store, compared)
    }
    return Report(of, compared, answers_by_address, _aliases(store, named, answers_by_address))


def _trials(store: Store, since: float) -> dict[str, Any]:
    """Return the answers of trials with a run since then, by API address."""
    listed = answers.trials(store, since)
    addresses = {
        f"api/trial?{urlencode({'together': trial['together']})}": trial for trial in listed["trials"]
    }
    return {"api/trials": listed} | {
        address: answers.trial(store, trial["together"]) for address, trial in addresses.items()
    }


def _scaling(store: Store, together: str | None) -> dict[str, Any]:
    """Return the scaling of `together` (a sweep run or DAG run) as answers by API address.

    DAG runs of the same DAG from the five weeks before are included.
    """
    if together is None:
        return {"api/scaling": answers.results([]) | {"together": None, "known": []}}
    latest = answers.scaling(store, together)
    of_dag = [dag_run for dag_run in latest["known"] if _dag(dag_run["together"]) == _dag(together)]
    at = next((dag_run["submitted_at"] for dag_run in of_dag if dag_run["together"] == together), 0.0)
    known = [dag_run for dag_run in of_dag if 0 <= at - dag_run["submitted_at"] <= _LONGEST_BEFORE_S]
    dag_runs = {
        f"api/scaling?{urlencode({'together': dag_run['together']})}": dag_run["together"]
        for dag_run in known
    }
    return {"api/scaling": latest | {"known": known}} | {
        address: answers.scaling(store, name) | {"known": known} for address, name in dag_runs.items()
    }


def _dag(together: str) -> str:
    return together.partition("/")[0]


def _nothing(_dag_id: str | None) -> bool:
    """Return False: in a report file nothing can be edited."""
    return False


def _opened(store: Store, compared: Comparison) -> list[dict[str, Any]]:
    """Return the runs whose details the file includes: failed ones, and the newest of each changed series."""
    missing = compared.completeness.missing if compared.completeness else []
    failed = [cell["job_name"] for cell in missing if cell["attempts"] and cell["job_name"]]
    changed = [finding.run.job_name for finding in compared.findings if finding.changed]
    names = list(dict.fromkeys([*failed, *changed]))[:_MOST_DETAILS]
    rows = (store.results(job_name=name, include_rejected=True) for name in names)
    return [row for of_name in rows for row in of_name]


def _aliases(
    store: Store, named: Mapping[Series, str], answers_by_address: Mapping[str, Any]
) -> dict[str, str]:
    """Return, for each older run that a trend link names, the newest run of its series.

    The file has the trend of a series only under its newest run (`named`).
    """
    incidents = answers_by_address["api/incidents"]["incidents"]
    cells = [cell for incident in incidents for cell in incident["cells"]]
    completeness = answers_by_address["api/comparison"]["completeness"] or {"missing": []}
    links = {cell["job_name"] for cell in (*cells, *completeness["missing"])} - {None, *named.values()}
    series_of = {name: Series.from_row(store.run(name)) for name in sorted(links)}
    return {name: named[series] for name, series in series_of.items() if series in named}


def html(report: Report, now: float) -> str:
    """Render the report as one HTML file; `now` (Unix time) is the date it shows."""
    sentence, missing = report.comparison.sentence, report.comparison.completeness
    summary = f"<strong>{escape(sentence[:1].upper() + sentence[1:])}.</strong>"
    summary += f" {escape(missing.line)}." if missing and missing.planned else ""
    for trial in report.answers["api/trials"]["trials"]:
        summary += f" Trial {escape(trial['trial'])}: {escape(' '.join(trial['sentences']))}"
    frozen = {
        "of": report.of,
        "made": f"made {date_and_time(now)} by steptime {__version__}",
        "answers": report.answers,
        "newest": report.newest,
    }
    # Without "<" the data cannot end the script element; json.dumps writes ASCII without control characters.
    data = json.dumps(frozen, separators=(",", ":")).replace("<", "\\u003c")
    nonce = secrets.token_urlsafe(16)
    modules = {f"steptime/{file.name}": _module(file) for file in sorted(_STATIC.glob("*.js"))}
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'nonce-{nonce}' 'strict-dynamic'",
            "style-src 'unsafe-inline'",
            "img-src data:",
        )
    )
    icon = base64.b64encode((_STATIC / "icon.svg").read_bytes()).decode()
    in_file = {
        '<link rel="icon" href="static/icon.svg">': (
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">'
        ),
        '<link rel="stylesheet" href="static/results.css">': f"<style>{static_text('results.css')}</style>",
        '<script src="static/vendor/chart.umd.min.js"></script>': (
            f'<script type="application/json" id="frozen">{data}</script>'
            f'<script nonce="{nonce}">{static_text("vendor/chart.umd.min.js")}</script>'
            f'<script type="importmap" nonce="{nonce}">{json.dumps({"imports": modules})}</script>'
        ),
        '<script type="module" src="static/main.js"></script>': (
            f'<script type="module" nonce="{nonce}">import "steptime/main.js";</script>'
        ),
        "<title>Step times</title>": f"<title>Step times: {escape(report.of)}</title>",
        "Reading the metrics store …": summary,
    }
    page = static_text("index.html")
    for part, replacement in in_file.items():
        before, separator, after = page.partition(part)
        if not separator:
            raise AssertionError(f"static/index.html of the web pages lacks {part}")
        page = before + replacement + after
    return page


def static_text(name: str) -> str:
    """Return the text of a static file of the web pages, such as `results.css`."""
    return (_STATIC / name).read_text(encoding="utf-8")


def _module(file: Path) -> str:
    """Return a script as a data URL whose imports refer to names of the import map."""
    script = re.sub(r'(from|import) "\./', r'\1 "steptime/', file.read_text(encoding="utf-8"))
    return f"data:text/javascript;base64,{base64.b64encode(script.encode()).decode()}"
