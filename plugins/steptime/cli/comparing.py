"""`steptime results compare`: what got slower, whether that is certain, and what changed."""

import getpass
import time
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show_columns, show_table
from steptime.cli.selecting import require_results, since_when
from steptime.errors import UserError

if TYPE_CHECKING:
    from steptime.judging.findings import Comparison
    from steptime.results.store import Store

SLOWER_EXIT_CODE = 3
_SINCE = "7d"

COMPARE_EXAMPLES = """
[bold]Examples[/bold]

steptime results compare

steptime results compare --since 2026-11-16 --format csv > week.csv

steptime results compare --sweep weekly || echo "slower, or it failed"

steptime results compare pretrain_llama3.1_tiny_fp32_2-1a2b pretrain_llama3.1_tiny_fp32_2-5e6f
"""


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN RUN",
            help="Two jobs, the earlier first: their names as results --full-names lists them, unique "
            "beginnings, or last.",
            show_default=False,
        ),
    ] = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(help=f"Cells that ran since then: 30m, 12h, {_SINCE} (the default), or 2026-11-21."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="The cells of this sweep, a file of config/sweeps.")
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show what got slower: each cell judged by its own history, worst first, after one sentence for all.

    A run outside of what is usual for its cell is suspected; the mean of the next two decides.
    The exit code is 3 if a slowdown is confirmed, 0 if none is, 1 for bad input, 2 if the store
    cannot be read.
    """
    from steptime.judging.findings import COLUMNS
    from steptime.results.report import compared
    from steptime.results.store import Store

    store = Store()
    found = _compare(store, runs or [], since, sweep)
    missing = found.completeness
    if not found.findings and (missing is None or not missing.planned):
        typer.echo("No cell has run since then: --since 30d looks further back.", err=True)
    is_table = output_format is Format.TABLE
    if output_format is not Format.JSON:
        lines = (f"{found.sentence}.", missing and f"{missing.line}.", found.took)
        for line in filter(None, lines):
            typer.echo(line, err=not is_table)
    if not is_table:
        beside = {
            "sentence": found.sentence,
            "completeness": missing and missing.as_json,
            "took": found.took,
            "remarks": found.remarks,
        }
        show_columns(found.rows, COLUMNS, output_format, called="cells", beside=beside)
    else:
        if found.findings:
            columns, title = compared(found.rows, of=COLUMNS)
            show_table(found.rows, columns, title=title, wide=wide)
        for remark in (*(missing.remarks if missing else ()), *found.remarks):
            typer.echo(remark)
    if found.confirmed_slower:
        raise typer.Exit(SLOWER_EXIT_CODE)


JUDGE_EXAMPLES = """
[bold]Examples[/bold]

steptime results judge --all
"""


def judge(
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Every run of the store. It has to be given: nothing else is meant.")
    ] = False,
) -> None:
    """Judge all runs of the store again, as after a change of the rules.

    Runs are judged as they are published, so this is rarely needed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from steptime.judging.judgements import judge_all
    from steptime.results.store import Store

    if not every:
        raise UserError(
            "runs are judged as they are published: 'steptime results judge --all' judges all anew."
        )
    store = Store()
    require_results(store, "judge")
    columns = (TextColumn("series"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        judged = judge_all(store, lambda done, of: bar.update(task, completed=done, total=of))
    typer.echo(f"{judged} series judged")


ACCEPT_EXAMPLES = """
[bold]Examples[/bold]

steptime results accept pretrain_llama3.1_tiny_fp32_2-1a2b --note "NeMo 2.8 checks gradients"
"""


def accept(
    run: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="A run of the new level: its job's name, a unique beginning of it, or last."
        ),
    ],
    *,
    note: Annotated[str, typer.Option(help="Why it is accepted, for those who ask later.")],
) -> None:
    """Accept a new level: the run's cell is judged by the runs from there on.

    If the run belongs to a suspicion, or to a confirmed change, the new baseline begins with the first run of
    that. Below 6 runs its cell has insufficient history. The store keeps who accepted it, when, and the note.
    """
    from steptime.judging import judgements
    from steptime.results.store import Store

    if not note.strip():
        raise UserError("--note is empty: write why the new level is accepted.")
    store = Store()
    require_results(store, "accept")
    first = judgements.accept(store, run, note=note.strip(), accepted_by=getpass.getuser())
    typer.echo(f"accepted: the baseline begins anew with {first}")


def _compare(store: "Store", runs: list[str], since: str | None, sweep: str | None) -> "Comparison":
    """The comparison that was asked for. Raises UserError if none was, or several."""
    from steptime.judging.comparison import compare_runs, compare_since, compare_sweep

    asked = [name for name, value in (("two runs", runs), ("--since", since), ("--sweep", sweep)) if value]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} exclude each other: name one of them.")
    if len(runs) not in (0, 2):
        raise UserError(
            f"{len(runs)} runs are named ({', '.join(runs)}): name two, or none for a whole week."
        )
    require_results(store, "compare")
    if runs:
        return compare_runs(store, *runs)
    if sweep is not None:
        return compare_sweep(store, sweep)
    return compare_since(store, since_when(since or _SINCE, time.time()))
