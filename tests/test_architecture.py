"""The page about the rooms says what is there."""

import re
from pathlib import Path

from docs.draw_architecture import (
    PAGE,
    counts,
    drawn,
    may_be_imported_by,
    neighbours,
    purpose,
    rooms,
    written,
)

ROOT = Path(__file__).parents[1]


def test_the_page_has_todays_picture_and_table() -> None:
    """`python docs/draw_architecture.py` writes them anew."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == drawn(text)


def test_the_page_has_about_todays_sizes() -> None:
    """The same writes them anew; how many modules a run passes takes a run, and is written by `--passes`."""
    now, found = counts(), written(PAGE.read_text(encoding="utf-8"))
    assert found.keys() == now.keys()
    wrong = {
        room: (found[room], now[room])
        for room in now
        for was, count in zip(found[room], now[room], strict=False)
        if was is None or abs(was - count) > max(2, count / 6)
    }
    assert not wrong


def test_every_room_says_what_it_is_for_and_who_may_import_it() -> None:
    found = neighbours()

    assert set(may_be_imported_by()) == set(rooms())
    assert [room for room in rooms() if not purpose(room).endswith(".")] == []
    importers = {room: {one for one in found if room in found[one]} for room in rooms()}
    unused = {room: set(may_be_imported_by()[room]) - importers[room] for room in rooms()}
    assert not any(unused.values()), unused


def test_where_to_change_what_names_files_that_are_there() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Where do I change")[2]
    changes = [line for line in table.splitlines() if line.startswith("| ")][1:]
    paths = re.findall(r"`([\w./-]+[./][\w./-]*)`", "\n".join(changes))

    assert len(changes) >= 20
    places = (ROOT, ROOT / "plugins" / "steptime")
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []
