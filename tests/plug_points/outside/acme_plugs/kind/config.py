"""The file of a cluster of this kind: that of a local one."""

from typing import Literal

from steptime.clusters.local.config import LocalConfig


class Config(LocalConfig):
    kind: Literal["acme"]  # type: ignore[assignment]
