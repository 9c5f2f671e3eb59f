"""GPU counts, windows and time limits as people write them, and lists of nodes as Slurm writes them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steptime.errors import UserError
from steptime.recipes.node_lists import expand_nodes, fold_nodes
from steptime.recipes.notation import (
    format_hours,
    format_time_limit,
    parse_time_limit,
    parse_window,
    select_gpus,
)

SCALES = st.lists(st.integers(1, 4096), min_size=1, max_size=12, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        (12345.678, "12,345.68"),
        (0.25, "0.25"),
        (0.0, "0.00"),
        (0.0421, "0.042"),
        (0.00042, "0.00042"),
        (1e-12, "0.000000"),
    ],
)
def test_small_hours_keep_digits_that_say_something(hours, told):
    assert format_hours(hours) == told


@given(SCALES, st.integers(1, 5000), st.integers(1, 5000))
def test_a_range_without_a_documented_count_is_refused(documented, first, last):
    assume(not any(first <= gpus <= last for gpus in documented))
    problem = "no valid GPU count is in the range" if first <= last else f"write {last}-{first}"
    with pytest.raises(UserError, match=problem):
        select_gpus(f"{first}-{last}", documented)


@given(SCALES, st.data())
def test_lists_of_counts_and_ranges_select_what_any_part_selects(documented, data):
    count = st.sampled_from(documented)
    parts = data.draw(st.lists(st.tuples(count, count).map(sorted), min_size=1))
    text = ",".join(f"{first}-{last}" if first < last else str(first) for first, last in parts)
    selected = {gpus for gpus in documented if any(first <= gpus <= last for first, last in parts)}
    assert select_gpus(text, documented) == tuple(sorted(selected))


def test_lists_and_ranges_mix():
    assert select_gpus(" 8 - 32, 128 ,16", [8, 16, 32, 64, 128]) == (8, 16, 32, 128)


@pytest.mark.parametrize("text", ["", "8,", "eight", "8..16", "-8", "8-16-32", "1e3", "٨"])
def test_other_forms_are_refused(text):
    with pytest.raises(UserError, match="not of the form 8,16 or 8-128"):
        select_gpus(text, [8, 16])


@given(st.integers(1, 999 * 3600))
def test_time_limit_there_and_back(seconds):
    assert parse_time_limit(format_time_limit(seconds)) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "00:00:00", "0:60:00", "00:30", "1000:00:00", "1-00:00:00", "00:30:00:00"]
)
def test_no_time_limit(text):
    with pytest.raises(UserError, match="not of the form HH:MM:SS"):
        parse_time_limit(text)


@pytest.mark.parametrize("text", ["", "10", "10-19", "a:b", "1:2:3", "-1:4", "1.5:2"])
def test_no_window(text):
    with pytest.raises(UserError, match="not of the form FIRST:LAST"):
        parse_window(text)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("login", ("login",)),
        ("n[1-3],gpu-b7", ("n1", "n2", "n3", "gpu-b7")),
        ("gpu[08-10,012]", ("gpu08", "gpu09", "gpu10", "gpu012")),
        ("r[1-2]n[1,3]", ("r1n1", "r1n3", "r2n1", "r2n3")),
    ],
)
def test_node_lists(text, nodes):
    assert expand_nodes(text) == nodes


def test_what_is_no_range_is_a_name():
    assert expand_nodes("n[a-b,1-x,2]") == ("na-b", "n1-x", "n2")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["node7"], "node7"),
        (["node10", "node2", "node1", "node2"], "node[1-2],node10"),
        (["n08", "n09", "n10", "n12"], "n[08-10,12]"),
        (["n1", "n3", "n5"], "n[1,3,5]"),
        (["n1", "n01"], "n01,n1"),
        (["r2n1", "r1n2", "r1n1"], "r1n[1-2],r2n1"),
        (["gpu-b7", "gpu-b", "7"], "7,gpu-b,gpu-b7"),
    ],
)
def test_names_stand_together_where_their_last_number_alone_differs(names, text):
    assert fold_nodes(names) == text
    assert set(expand_nodes(text)) == set(names)
