"""The form of a request: optional fields, limits of numbers, and the wording of refusals."""

import pytest

from steptime.errors import UserError
from steptime.recipes.request import PlanRequest, option_fields, parse_request


def taken(name, value):
    try:
        return bool(parse_request({"workload": "llama3.1", name: value}).model_dump()[name] == value)
    except UserError:
        return False


def test_every_example_is_a_value_of_its_field():
    for name, field in option_fields().items():
        for example in field.examples or ():
            assert taken(name, example), f"{name} {example!r}"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "the parameter workload is missing: name it, as in workload=llama3.1."),
        ({"workload": "a", "environment": {"A": 1}}, "environment.A 1: has to be text."),
        ({"workload": "a", "gpus": 8}, "gpus 8: has to be text."),
        ({"workload": "a", "dtipe": None}, "unknown parameter 'dtipe': did you mean 'dtype'?"),
    ],
)
def test_what_is_refused_is_named(values, complaint):
    with pytest.raises(UserError) as refusal:
        parse_request(values)
    assert complaint in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_options_of_a_kind_of_cluster_stand_beside_the_others_in_json():
    request = parse_request({"workload": "llama3.1", "partition": "batch", "gres": "off", "account": None})
    assert request.cluster_options == {"partition": "batch", "gres": False}
    written = request.model_dump(mode="json", exclude_defaults=True)
    assert written == {"workload": "llama3.1", "partition": "batch", "gres": False}
    assert PlanRequest.model_validate_json(request.model_dump_json()) == request
