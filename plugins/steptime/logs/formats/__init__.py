"""How training frameworks print a step: one class a format, and nothing else knows them.

A new format is a new class with the interface of `LogFormat`, named in `FORMATS`.
"""

from steptime.logs.formats.base import LogFormat, StepLine
from steptime.logs.formats.megatron_bridge import MegatronBridge
from steptime.logs.formats.nemo2 import NeMo2
from steptime.logs.formats.torchtitan import TorchTitan
from steptime.logs.formats.tqdm import Tqdm

FORMATS: tuple[type[LogFormat], ...] = (NeMo2, Tqdm, MegatronBridge, TorchTitan)

__all__ = ["FORMATS", "LogFormat", "StepLine"]
