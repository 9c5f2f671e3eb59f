"""Times as people say them."""


def duration(seconds: float) -> str:
    """Format a time for people: `40 s`, `12 min`, `3.5 h`, `7.0 days`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 3600 * 100 else f"{seconds / 86400:.1f} days"
