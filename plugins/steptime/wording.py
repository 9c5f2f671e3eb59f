"""Words in sentences for people."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural: `1 run`, `1,204 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
