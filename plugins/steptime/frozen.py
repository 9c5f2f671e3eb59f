"""The base class of all data models: immutable, no unknown fields, JSON in and out."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable record; unknown fields are errors.

    In JSON a number that is none (a loss that became NaN) is the string "NaN", and comes back as it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
