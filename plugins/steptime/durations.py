"""Durations: the seconds of a week, and types of fields with bounds that no sensible value exceeds."""

from typing import Annotated

from pydantic import Field

WEEK_S = 7 * 86_400.0

Hours = Annotated[float, Field(gt=0, le=8784, allow_inf_nan=False)]
"""Hours above zero, at most those of a year."""
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
"""Seconds, zero or more, at most those of a day."""
PollInterval = Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)]
"""Seconds between two polls, from a hundredth to an hour: less would only load the scheduler."""
