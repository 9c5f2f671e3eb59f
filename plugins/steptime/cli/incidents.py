"""`steptime incidents`: what got slower or faster together, since when, and what people said about it."""

import time
from typing import Annotated, Any

import typer

from steptime.ages import since_when, until_when
from steptime.cli.output import FORMAT_OPTION, Format, show
from steptime.cli.selecting import require_results
from steptime.cli.usage import Commands
from steptime.errors import UserError
from steptime.judging.incidents import (
    Incident,
    accept,
    comment,
    end_silence,
    find_incident,
    incidents,
    silence,
)
from steptime.process_identity import user_name
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime incidents

steptime incidents --since 30d --format json

steptime incidents accept 12 --note "NeMo 2.8 checks gradients"

steptime incidents silence 12 --until 14d --note "ticket 4711: the switch is being replaced"

steptime incidents note 12 "ticket 4711: the switch is being replaced"
"""

app = typer.Typer()
group = typer.Typer(cls=Commands)
app.add_typer(group, name="incidents")

NUMBER = Annotated[int, typer.Argument(metavar="ID", help="The incident's number, as listed.")]


@group.callback(invoke_without_command=True, epilog=EXAMPLES)
def list_incidents(
    context: typer.Context,
    *,
    since: Annotated[
        str | None,
        typer.Option(help="Also incidents that were closed since then: 30m, 12h, 30d, or 2026-11-21."),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
) -> None:
    """List the incidents: cells (configurations) that got slower or faster together, with cause and state."""
    if context.invoked_subcommand is not None:
        return
    store = _store("show")
    listed = incidents(store, closed_since=None if since is None else since_when(since, time.time()))
    if not listed and output_format is Format.TABLE:
        typer.echo("There is no incident: nothing is reported as slower or faster.", err=True)
        return
    if output_format is Format.TABLE:
        show(
            [{"id": entry.id, "state": _told(entry), "incident": entry.title} for entry in listed],
            output_format,
            called="",
        )
        for entry in listed:
            note = f" Note of {entry.noted_by}: {entry.note}" if entry.note else ""
            typer.echo(f"{entry.id}: {entry.evidence}.{note}")
    else:
        show([_row(entry) for entry in listed], output_format, called="incidents")


@group.command("show")
def show_incident(number: NUMBER, *, output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE) -> None:
    """Show one incident with its cells."""
    shown = find_incident(_store("show"), number)
    if output_format is Format.TABLE:
        typer.echo(shown.sentence)
        if shown.silence:
            typer.echo(f"{shown.silence.capitalize()}.")
        if shown.note:
            typer.echo(f"Note of {shown.noted_by}: {shown.note}")
    cells = [
        {
            "cell": cell.series.full_name,
            "state": cell.state,
            "change_percent": 100 * cell.change,
            "seconds": cell.seconds,
            "usual_s": cell.usual_s,
            "job": cell.job_name,
        }
        for cell in shown.affected
    ]
    show(cells, output_format, called="cells")


@group.command("accept")
def accept_incident(
    number: NUMBER, *, note: Annotated[str, typer.Option(help="The reason, for people who look at it later.")]
) -> None:
    """Accept the changed step times of an incident's cells: they become the new baselines.

    `results accept` does this for one cell. The incident closes; the store keeps who accepted it and the
    reason, which replaces an earlier note.
    """
    store = _store("accept")
    accepted = accept(store, number, note=_written(note, "--note"), author=user_name())
    typer.echo(f"accepted: {accepted.title}")


@group.command("silence")
def silence_incident(
    number: NUMBER,
    *,
    until: Annotated[
        str, typer.Option(help="How long: 12h, 14d, or a date as 2026-12-03; `now` ends the silence.")
    ],
    note: Annotated[str, typer.Option(help="The reason, for people who look at it later.")] = "",
) -> None:
    """Let a known incident count apart until a time, without notifications; afterwards it counts again.

    Its cells are still judged and shown. The store keeps who silenced it and the reason, which replaces an
    earlier note.
    """
    store = _store("silence")
    if until == "now":
        typer.echo(f"counts again: {end_silence(store, number).title}")
        return
    silenced = silence(
        store,
        number,
        until=until_when(until, time.time()),
        note=_written(note, "--note"),
        author=user_name(),
    )
    typer.echo(f"{silenced.silence}: {silenced.title}")


@group.command("note")
def note_incident(
    number: NUMBER, text: Annotated[str, typer.Argument(help="What others should know; replaces the note.")]
) -> None:
    """Write a note on an incident; it replaces an earlier one."""
    noted = comment(_store("note"), number, note=_written(text, "the note"), author=user_name())
    typer.echo(f"noted: {noted.title}")


def _store(to: str) -> Store:
    store = Store()
    require_results(store, to)
    return store


def _written(text: str, what: str) -> str:
    if not text.strip():
        raise UserError(f"{what} is empty: write what others should know.")
    return text.strip()


def _told(listed: Incident) -> str:
    return ", ".join(filter(None, (listed.state, listed.silence)))


def _row(listed: Incident) -> dict[str, Any]:
    return {
        "id": listed.id,
        "state": listed.state,
        "title": listed.title,
        "cells": len(listed.affected),
        "change_percent": 100 * listed.change,
        "since": listed.since,
        "cluster": listed.cluster,
        "kind": listed.kind,
        "note": listed.note,
        "silenced_until": listed.silenced_until if listed.is_silenced else None,
        "silenced_by": listed.silenced_by if listed.is_silenced else None,
    }
