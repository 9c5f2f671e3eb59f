"""How training frameworks print a step: one record a format, named in `plug_points.LOG_FORMATS`."""

from steptime.logs.formats.base import LogFormat, StepLine, Values

__all__ = ["LogFormat", "StepLine", "Values"]
