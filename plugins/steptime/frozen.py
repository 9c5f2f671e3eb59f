"""The base of every model that moves through the pipe: frozen, strict about its fields, JSON in and out."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable record; an unknown field is an error and never ignored.

    In JSON a number that is none (a loss that became NaN) is the string "NaN", and comes back as it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
