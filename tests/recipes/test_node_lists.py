"""Lists of nodes: what Slurm writes is read to the letter, and what is written Slurm reads as the same."""

import pytest

from steptime.recipes.node_lists import expand_nodes, fold_nodes


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
def test_node_lists(text: str, nodes: tuple[str, ...]) -> None:
    assert expand_nodes(text) == nodes


def test_what_is_no_range_is_a_name() -> None:
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
def test_names_stand_together_where_their_last_number_alone_differs(names: list[str], text: str) -> None:
    assert fold_nodes(names) == text
    assert set(expand_nodes(text)) == set(names)
