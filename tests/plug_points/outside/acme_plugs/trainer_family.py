"""The trainer's side of the model family; it imports nothing of steptime's pipeline."""

from typing import Any


def build_model(shape: Any, device: str, device_options: dict[str, Any]) -> str:
    return f"a model of ACME on {device}"
