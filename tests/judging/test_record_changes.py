"""The differences of two runs by their records, which are the events of a series."""

import json

import pytest

from steptime.judging.record_changes import changed_to, changes, has_changed_to, is_notable, node_changes
from steptime.store.run_records import setup_sha256


def test_events_between_two_runs_are_told_with_both_values(make_result):
    one = json.loads(make_result("one").record)
    other = json.loads(make_result("two", environment={"NCCL_ALGO": "Ring"}).record)
    other["versions"] |= {"nemo": "2.8.0", "driver": "a/folder/with/a/long/name/of/more/than/40"}
    other["provenance"]["git_commit"] = "f" * 40
    other["provenance"]["staged"] |= {"image": "nemo:25.12", "image_digest": f"sha256:{'c' * 64}"}
    other["run"]["performance"]["trainer"] |= {"overlap_grad_reduce": True}
    other["nodes"] = ["n1", "n2"]

    told = changes(json.dumps(one), json.dumps(other))

    assert told == [
        "image none → nemo:25.12",
        "image digest none → cccccccccccc",
        "nemo 2.7.3 → 2.8.0",
        "commit 675de01b859e → ffffffffffff",
        "performance.trainer.overlap_grad_reduce False → True",
        "driver none → a/folder/with/a/long/name/of/more/than/40",
        "NCCL_ALGO none → Ring",
        "nodes localhost → n1, n2",
    ]
    assert changes(json.dumps(one), json.dumps(one)) == []


def test_what_does_not_change_how_a_run_ran_is_no_event(make_result):
    one = json.loads(make_result("one").record)
    other = json.loads(json.dumps(one))
    other["run"] |= {"model_flops": 1.0, "experiment": "other", "repeat": 9, "checkpoint_path": "/other"}
    other["run"] |= {
        "schema_version": 2,
        "cluster": "other",
        "mode": "profile",
        "cluster_options": {"exclude": "n1"},
    }
    # A cell that a person has run by hand comes into a sweep.
    other["run"] |= {"cell": "llama3.1·tiny·fp32·2", "keep_checkpoint": True, "for_judging": False}
    other["run"]["trial"] = {"variant": "mbs 2", "round": 3}
    other["run"]["recipe"] |= {"image": "nemo:25.12"}
    other["provenance"]["environment"] |= {"PYTHONPATH": "/elsewhere"}
    assert changes(json.dumps(one), json.dumps(other)) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (["n1", "n2"], ["n1", "n2"], []),
        (["n1", "n2"], ["n2", "n1"], ["nodes n1, n2 → n2, n1"]),
        (["n1", "n2", "n3", "n4", "n5"], ["n5", "n6", "n7", "n8", "n9"], ["nodes: 4 of 5 are others"]),
        (["n1", "n2", "n3", "n4", "n5"], ["n5", "n4", "n3", "n2", "n1"], ["nodes: in another order"]),
        (["n1", "n2", "n3"], ["n3", "n4", "n5", "n6", "n7"], ["nodes: 4 of 5 are others"]),
        (["n1", "n2", "n3", "n4", "n5"], ["n1", "n2", "n6"], ["nodes: 1 of 3 are others"]),
    ],
)
def test_of_many_nodes_it_says_how_many_are_others(before, after, told):
    assert node_changes(", ".join(before) or None, ", ".join(after)) == told


def test_a_variable_differs_once_by_its_own_name(make_result):
    """The plan has the requested variables, and the record of what ran has all of them."""
    one = json.loads(make_result("one").record)
    other = one | {"run": one["run"] | {"environment": {"NCCL_ALGO": "Ring"}}}
    assert changes(json.dumps(one), json.dumps(other)) == []
    other["provenance"] = one["provenance"] | {"environment": {"NCCL_ALGO": "Ring"}}
    assert "NCCL_ALGO none → Ring" in changes(json.dumps(one), json.dumps(other))


def test_runs_made_alike_share_a_hash_on_whatever_nodes(make_result):
    one = json.loads(make_result("one").record)
    elsewhere = one | {"nodes": ["n7"]}
    reordered = dict(reversed(one.items())) | {"versions": dict(reversed(one["versions"].items()))}
    newer = one | {"versions": one["versions"] | {"nemo": "2.8.0"}}
    hashes = [setup_sha256(json.dumps(record)) for record in (one, elsewhere, reordered, newer)]
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]
    assert None not in hashes
    assert setup_sha256("{}") is None


def test_which_events_may_slow_a_run_and_which_runs_share_them():
    events = ("nodes: 4 of 5 are others", "nodes n1 → n2", "commit 1 → 2", "steptime 1 → 2", "nccl 1 → 2")
    assert [is_notable(event) for event in events] == [False, False, False, False, True]
    assert changed_to("image digest a b → c") == changed_to("image digest d → c") == ("image", "c")
    made = {"nccl": "2", "NCCL_ALGO": "Ring"}
    assert has_changed_to(made, "nccl 1 → 2")
    assert not has_changed_to(made, "nccl 2 → 1")
    assert not has_changed_to(made, "NCCL_ALGO Ring → none")
    assert has_changed_to(made, "NCCL_NVLS 1 → none"), "it has no such variable"
