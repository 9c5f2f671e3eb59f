"""The dossier: one HTML file on a suite, which is a sweep judged against published step times.

It has the verdicts, what is missing, versions, and checksums of the logs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from steptime import __version__
from steptime.errors import one_line
from steptime.judging import suite as suites
from steptime.judging.suite import Suite
from steptime.measure.report import choose_columns, format_column, list_notes
from steptime.measure.run_files import log_sha256
from steptime.pages.report_file import static_text
from steptime.recipes.published import PUBLISHED_THROUGHPUT
from steptime.store import columns
from steptime.store.columns import Column
from steptime.store.run_queries import Store
from steptime.wording import date_and_time

_SHOWN_AS = {"passes": "faster", "below": "slower", "failed": "slower", "missing": "slower"}
"""Class in the style sheet, by verdict."""
_RUNS = (
    suites.COLUMNS[0],
    *(columns.BY_NAME[name] for name in ("job_name", "state", "submitted_at", "step_time_mean_s", "window")),
    *(columns.BY_NAME[name] for name in ("gpus", "gpu_type", "cluster")),
    Column("log_sha256", "text", "Checksum of its log.", heading="SHA-256 of the log", priority=0),
)


def _without_control_characters(value: object) -> object:
    """Escape control characters in a value that a template inserts; HTML is already escaped."""
    return (
        one_line(value, at_most=None) if isinstance(value, str) and not hasattr(value, "__html__") else value
    )


_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("steptime.pages", package_path="."),
    autoescape=True,
    finalize=_without_control_characters,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


@dataclass(frozen=True)
class _Table:
    """A table whose values are formatted for people."""

    title: str
    headings: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[str]]


def _make_table(rows: Sequence[Any], of: Sequence[Column]) -> _Table | None:
    """Format the rows as a table that includes job names; None if there are no rows."""
    if not rows:
        return None
    used, title = choose_columns(rows, full_names=True, of=of)
    cells = [format_column(column, rows) for column in used]
    numeric = [column.kind in ("number", "integer") for column in used]
    return _Table(title, [column.title for column in used], numeric, list(zip(*cells, strict=True)))


def dossier(store: Store, suite: Suite, now: float) -> str:
    """Render the dossier of a suite, a sweep judged against published step times, as one HTML file.

    `now` (Unix time) is the date it shows.
    """
    counted = "every run counts" if suite.since is None else f"runs since {date_and_time(suite.since)} count"
    runs = [
        {**row, "cell": suite.find_cell(row).name, "log_sha256": log_sha256(row) or "not on this machine"}
        for row in suite.runs
    ]
    return _templates.get_template("dossier.html.j2").render(
        style=Markup(static_text("results.css")),  # noqa: S704 (our own file)
        of=f"suite {suite.sweep.name}",
        description=suite.sweep.description,
        counted=counted,
        made=f"{date_and_time(now)} by steptime {__version__}",
        sentence=suite.sentence,
        confidence=f"{100 * suites.CONFIDENCE:g} %",
        limit=f"{100 * PUBLISHED_THROUGHPUT:g}",
        cells=_make_table(suite.rows, suites.COLUMNS),
        verdicts=[_SHOWN_AS.get(cell.verdict, "") for cell in suite.cells],
        lacking=suite.lacking,
        parts=[
            ("Made with", _make_table(suites.made_with(store, suite), suites.MADE_WITH)),
            ("Runs", _make_table(runs, _RUNS)),
        ],
        notes=list_notes(suite.runs),
    )
