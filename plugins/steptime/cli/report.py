"""`steptime report`: write the web pages of results as one HTML file, which can be mailed."""

import time
from pathlib import Path
from typing import Annotated

import typer

from steptime.ages import since_when
from steptime.cli.selecting import require_results
from steptime.errors import UserError, one_line
from steptime.files import write_whole
from steptime.judging.suite import judge_suite
from steptime.measure.archiving import check_name, write_llmb_archive
from steptime.pages.dossier import dossier
from steptime.pages.report_file import html, report_since, report_sweep
from steptime.store.run_queries import Store

_SINCE = "7d"

EXAMPLES = """
[bold]Examples[/bold]

steptime report -o week.html

steptime report --since 30d -o month.html

steptime report --sweep weekly -o weekly.html

steptime report --suite exemplar-gb200 -o dossier.html --archive llmb-archive.tar.zst
"""


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def report(
    *,
    to: Annotated[
        Path, typer.Option("--output", "-o", help="The file, made or replaced.", metavar="FILE.html")
    ],
    sweep: Annotated[
        str | None, typer.Option(help="Report on the newest run of this sweep, a file of config/sweeps.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="Report on this sweep as a suite, that is, compared with the publications: whether each "
            "cell reaches 95 % of its published throughput, what is lacking, versions, and hashes of logs."
        ),
    ] = None,
    to_archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            help="With --suite: also write the logs of the suite's valid runs, in the form of NVIDIA's "
            "'llmb-run archive', for submission. The file must not exist yet.",
            metavar="FILE.tar.zst",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help=f"Report on what ran since then: 30m, 12h, {_SINCE} (the default), or 2026-11-21. The "
            "default of a suite is when its newest run began."
        ),
    ] = None,
) -> None:
    """Write the pages of results as one HTML file to send: what got slower, scaling, trends and runs.

    With --suite it reports whether the runs of one sweep reach their published throughput. All valid runs of
    its cells (planned configurations) count, however they were started.
    The file needs no network: it can be mailed, kept, and read in any browser, light or dark.
    It includes runs of the store that its readers may not be allowed to see in Airflow.
    """
    if sweep is not None and (since is not None or suite is not None):
        raise UserError("--sweep excludes --since and --suite: name one of them.")
    if not to.parent.is_dir() or to.is_dir():
        raise UserError(
            f"cannot write to '{one_line(to)}': name a file, such as week.html, in a folder that exists."
        )
    if to_archive is not None:
        if suite is None:
            raise UserError("--archive needs a suite: name one with --suite.")
        check_name(to_archive, "--archive")
    now = time.time()
    store = Store()
    require_results(store, "report")
    if suite is not None:
        judged = judge_suite(store, suite, None if since is None else since_when(since, now))
        content = dossier(store, judged, now)
        write_whole(to, content)
        lines = [f"{judged.sentence}.", *(f"{remark}." for remark in judged.lacking)]
        typer.echo("\n".join([*lines, f"report: {to}, {len(content.encode()) / 1e3:,.0f} kB"]))
        if to_archive is not None:
            made = write_llmb_archive(
                store, [row for row in judged.runs if row["state"] == "valid"], to_archive
            )
            others = "; this machine lacks the logs of the others" if made.logs < made.runs else ""
            typer.echo(f"archive: {to_archive}, {made.logs} of {made.runs} runs{others}")
        return
    report_data = (
        report_since(store, since_when(since or _SINCE, now)) if sweep is None else report_sweep(store, sweep)
    )
    content = html(report_data, now)
    write_whole(to, content)
    missing = report_data.comparison.completeness
    line = f"{missing.line}.\n" if missing else ""
    typer.echo(
        f"{report_data.comparison.sentence}.\n{line}report: {to}, {len(content.encode()) / 1e3:,.0f} kB"
    )
