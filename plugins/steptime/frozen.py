"""The base class of all data models: immutable, no unknown fields, JSON in and out."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable record; unknown fields are errors.

    In JSON a NaN (such as a loss) is the string "NaN", which is read back as NaN.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
