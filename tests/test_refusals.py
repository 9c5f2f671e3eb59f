"""A model's refusals are in our words, whatever pydantic calls the error."""

from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveFloat, ValidationError

from steptime.frozen import Frozen
from steptime.refusals import describe_validation_error, matching


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Thing(Frozen):
    count: NonNegativeInt = 0
    weight: PositiveFloat = 1
    share: float = Field(0.5, le=0.75)
    part: float = Field(0.5, lt=1)
    height: FiniteFloat = 1
    whole: bool = True
    title: Annotated[str, Field(min_length=1, max_length=5)] = "a"
    kind: Literal["full", "half"] = "full"
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = Field((1,), min_length=1)
    by_name: dict[str, int] = Field(default_factory=dict)
    name: Annotated[str, matching("[a-z]+", "small letters")] = "a"
    inside: "Thing | None" = None


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("count", "many", "has to be a whole number"),
        ("count", 1.5, "has to be a whole number"),
        ("count", -1, "has to be at least 0"),
        ("weight", "heavy", "has to be a number"),
        ("weight", 0, "has to be above 0"),
        ("share", 0.9, "has to be at most 0.75"),
        ("part", 1.0, "has to be below 1"),
        ("height", float("inf"), "has to be a finite number"),
        ("whole", "perhaps", "has to be true or false"),
        ("title", 5, "has to be text"),
        ("title", "", "has to be some text"),
        ("title", "abcdef", "has to be text of 5 characters at most"),
        ("kind", "third", "has to be 'full' or 'half'"),
        ("colour", "green", "has to be 'red' or 'blue'"),
        ("sizes", 5, "has to be a list, as in [a, b]"),
        ("sizes", [], "has to have entries, 1 or more"),
        ("by_name", [1], "has to be a mapping, as in {a: b}"),
        ("name", "A b", "has to be small letters"),
        ("inside", 5, "has to be a mapping, as in {a: b}"),
    ],
)
def test_a_refusal_is_in_our_words(field, value, words):
    with pytest.raises(ValidationError) as refused:
        Thing.model_validate({field: value})
    assert describe_validation_error(refused.value.errors()[0]) == words


def test_what_a_validator_says_is_left_as_it_is():
    assert (
        describe_validation_error({"type": "value_error", "msg": "Value error, is too heavy."})
        == "is too heavy"
    )
