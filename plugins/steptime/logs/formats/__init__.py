"""How training frameworks print a step: one class a format, named in `plug_points.LOG_FORMATS`."""

from steptime.logs.formats.base import LogFormat, StepLine

__all__ = ["LogFormat", "StepLine"]
