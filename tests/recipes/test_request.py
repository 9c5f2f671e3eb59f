"""The form of a request: what may be left out, how far numbers go, and what is refused with which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from steptime.errors import UserError
from steptime.recipes.request import PlanRequest, option_fields, parse_request

DEFAULTS = {
    **{"scaling": "weak", "repeats": 1, "cluster": "local", "environment": {}, "arguments": {}},
    **dict.fromkeys(("proxy", "checkpoint", "save_checkpoint", "profile"), False),
    **dict.fromkeys(("gpu_metrics", "nccl_trace"), False),
}
"""Of fields that are something where nobody says anything; every other is None."""

RANGES = {
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "context_parallel"), (1, None)),
    **dict.fromkeys(("expert_parallel", "micro_batch_size", "global_batch_size"), (1, None)),
    "max_steps": (1, 1_000_000),
    "profile_start": (0, 1_000_000),
    "profile_stop": (1, 1_000_000),
    "repeats": (1, 100),
    "gpus_per_node": (1, 1024),
    "segment": (1, 1024),
}
"""Of every field that is a number, the smallest and the largest."""


def taken(name: str, value: Any) -> bool:
    try:
        return bool(parse_request({"workload": "llama3.1", name: value}).model_dump()[name] == value)
    except UserError:
        return False


def test_what_is_left_out_is_the_default() -> None:
    asked = parse_request({"workload": "llama3.1"}).model_dump()
    others = dict.fromkeys(asked.keys() - DEFAULTS.keys() - {"workload"})
    assert asked == {"workload": "llama3.1", **DEFAULTS, **others}
    assert parse_request(dict.fromkeys(option_fields()) | {"workload": "llama3.1"}).model_dump() == asked


def test_numbers_have_their_bounds() -> None:
    numbers = {name for name, field in option_fields().items() if field.annotation in (int, int | None)}
    assert numbers == RANGES.keys()
    wrong = [
        (name, value)
        for name, (least, most) in RANGES.items()
        for value, good in ((least - 1, False), (least, True), (most, True), (most and most + 1, False))
        if value is not None and taken(name, value) is not good
    ]
    assert not wrong


def test_every_example_is_a_value_of_its_field() -> None:
    for name, field in option_fields().items():
        for example in field.examples or ():
            assert taken(name, example), f"{name} {example!r}"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "the parameter workload is missing: name it, as in workload=llama3.1."),
        ({"workload": None}, "the parameter workload is missing"),
        ({"workload": "a", "environment": {"A": 1}}, "environment.A 1: has to be text."),
        ({"workload": "a", "gpus": 8}, "gpus 8: has to be text."),
        ({"workload": "a", "gpus": ["\n" * 99]}, r"gpus ['\n\n"),
        ({"workload": "a", "dtipe": None}, "unknown parameter 'dtipe': did you mean 'dtype'?"),
    ],
)
def test_what_is_refused_is_named(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_request(values)
    assert complaint in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_options_of_a_kind_of_cluster_stand_beside_the_others_in_json() -> None:
    asked = parse_request({"workload": "llama3.1", "partition": "batch", "gres": "off", "account": None})
    assert asked.cluster_options == {"partition": "batch", "gres": False}
    written = asked.model_dump(mode="json", exclude_defaults=True)
    assert written == {"workload": "llama3.1", "partition": "batch", "gres": False}
    assert PlanRequest.model_validate_json(asked.model_dump_json()) == asked


def test_a_request_does_not_change_and_has_no_other_fields() -> None:
    """What was planned is what is recorded."""
    asked = PlanRequest(workload="llama3.1")
    with pytest.raises(ValidationError, match="frozen"):
        asked.size = "8b"
    with pytest.raises(ValidationError, match="Extra inputs"):
        PlanRequest.model_validate({"workload": "llama3.1", "sise": "8b"})
