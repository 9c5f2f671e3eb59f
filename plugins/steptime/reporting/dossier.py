"""The dossier of a suite as one HTML file: cells with verdicts, what is lacking, versions, hashes of logs."""

from steptime import __version__
from steptime.judging import suite as suites
from steptime.judging.suite import Suite
from steptime.reporting.page import table_of, templates, when
from steptime.results import columns
from steptime.results.columns import Column
from steptime.results.metrics import PUBLISHED_THROUGHPUT
from steptime.results.report import notes
from steptime.results.run_files import log_sha256
from steptime.results.store import Store

_SHOWN_AS = {"passes": "faster", "below": "slower", "failed": "slower", "missing": "slower"}
"""Classes of the style sheet."""
_RUNS = (
    *(columns.BY_NAME[name] for name in ("job_name", "state", "submitted_at", "step_time_mean_s", "window")),
    *(columns.BY_NAME[name] for name in ("gpus", "gpu_type", "cluster")),
    Column("log_sha256", "text", "Of its log.", heading="SHA-256 of the log", priority=0),
)


def dossier(store: Store, suite: Suite, now: float) -> str:
    """Render the dossier of a suite, made at `now` (Unix time)."""
    counted = "every run counts" if suite.since is None else f"runs since {when(suite.since)} count"
    runs = [{**row, "log_sha256": log_sha256(row) or "not on this machine"} for row in suite.runs]
    return templates.get_template("dossier.html.j2").render(
        of=f"suite {suite.sweep.name}",
        description=suite.sweep.description,
        counted=counted,
        made=f"{when(now)} by steptime {__version__}",
        sentence=suite.sentence,
        confidence=f"{100 * suites.CONFIDENCE:g} %",
        limit=f"{100 * PUBLISHED_THROUGHPUT:g}",
        cells=table_of(suite.rows, suites.COLUMNS),
        verdicts=[_SHOWN_AS.get(cell.verdict, "") for cell in suite.cells],
        lacking=suite.lacking,
        parts=[
            ("Made with", table_of(suites.made_with(store, suite), suites.MADE_WITH)),
            ("Runs", table_of(runs, _RUNS)),
        ],
        notes=notes(suite.runs),
    )
