"""The base of every model that moves through the pipe: frozen, strict about its fields, JSON in and out."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable record; an unknown field is an error and never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
