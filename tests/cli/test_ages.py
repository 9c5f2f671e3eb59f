"""`--since` as people write it."""

import time
from datetime import UTC, datetime

import pytest

from steptime.ages import since_when


@pytest.fixture
def in_tokyo(monkeypatch):
    """Set the time zone to Tokyo, nine hours ahead of UTC."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-21", datetime(2026, 11, 20, 15, tzinfo=UTC)),
        ("2026-11-21T06:30", datetime(2026, 11, 20, 21, 30, tzinfo=UTC)),
        ("2026-11-21T06:30+02:00", datetime(2026, 11, 21, 4, 30, tzinfo=UTC)),
        ("2026-11-21T06:30Z", datetime(2026, 11, 21, 6, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_local_unless_it_names_a_zone(text, utc):
    assert since_when(text, now=0) == utc.timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)]
)
def test_an_age_counts_back_from_now(text, seconds):
    assert since_when(text, now=1e9) == 1e9 - seconds
