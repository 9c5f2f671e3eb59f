"""The finding about each of several runs: the verdict that lists, exports and pages show beside a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from steptime.judging.findings import VERDICT_COLUMNS, Finding
from steptime.judging.judgements import judgements_of_runs
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series
from steptime.judging.verdicts import read_q_values
from steptime.store.columns import Column
from steptime.store.run_queries import Store

RUN_VERDICT_COLUMNS = (
    *VERDICT_COLUMNS,
    Column(
        "run_change_percent",
        "number",
        "The run itself relative to the baseline: above 0 is slower.",
        heading="this run",
        unit="%",
        priority=2,
        decimals=1,
        signed=True,
    ),
)
"""What is told about a run's series as of that run, and how the run itself compares with the baseline."""


class RunSentence(NamedTuple):
    """How a run compares with the usual times of its series, in words."""

    sentence: str
    changed: str
    """What changed when its level began; empty if nothing did."""


def make_findings(store: Store, judged: Iterable[tuple[Series, Judgement]]) -> list[Finding]:
    """Return the findings about judged runs, in the same order, without commands for confirmation runs."""
    judged = list(judged)
    q_values = read_q_values(store, judged)
    return [
        Finding(series, judgement, q_values.get(judgement.run.job_name, 1.0)) for series, judgement in judged
    ]


def findings_of_runs(store: Store, rows: Sequence[Mapping[str, Any]]) -> dict[str, Finding]:
    """Return, by job name, the finding about each of these runs (rows of the store) that is judged."""
    return {
        finding.run.job_name: finding for finding in make_findings(store, judgements_of_runs(store, rows))
    }


def add_verdicts(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the store with the columns `RUN_VERDICT_COLUMNS`; they are None for runs not judged."""
    findings = findings_of_runs(store, rows)
    return [{**row, **verdict_of_run(findings.get(row["job_name"]))} for row in rows]


def results_with_verdicts(store: Store, **selected: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of `Store.results` for these arguments with their verdicts, a part at a time."""
    for part in store.results_in_parts(**selected):
        yield from add_verdicts(store, part)


def verdict_of_run(finding: Finding | None) -> dict[str, Any]:
    """Return the columns `RUN_VERDICT_COLUMNS` of the finding about a run; None in each without a finding."""
    if finding is None:
        return dict.fromkeys(column.name for column in RUN_VERDICT_COLUMNS)
    against = finding.series_state.against
    change = 100 * against.change([finding.run.seconds]) if against.suffices else None
    values = finding.verdict_columns | {"run_change_percent": change}
    return {column.name: values[column.name] for column in RUN_VERDICT_COLUMNS}


def run_sentence(finding: Finding) -> str:
    """Describe how a run compares with the usual times of its series, and how certain that is."""
    against, seconds = finding.series_state.against, finding.run.seconds
    slow = f"; {finding.run.row['stragglers']}" if finding.run.row["stragglers"] else ""
    if not against.suffices:
        return f"{seconds:.4g} s, insufficient history: {len(against.runs)} earlier runs{slow}"
    change = 100 * against.change([seconds])
    state = finding.series_state.state
    words = {"unchanged": "within the usual spread", "dismissed": "not confirmed by confirmation runs"}
    stands = words.get(state, state)
    if state == "suspected" and not finding.changed:
        stands = "suspected, which may be chance among the cells that ran then"
    return (
        f"{seconds:.4g} s, {abs(change):.1f} % {'slower' if change > 0 else 'faster'} than usual "
        f"({against.mean:.4g} s over {len(against.runs)} runs), {stands}{slow}"
    )


def describe_run(store: Store, row: Mapping[str, Any]) -> RunSentence | None:
    """Return how a run (a row of the store) compares with its history; None if it is not judged."""
    finding = findings_of_runs(store, [row]).get(row["job_name"])
    return None if finding is None else RunSentence(run_sentence(finding), finding.changes_in_words)
