"""Show the progress of commands that take a while."""

import time
from typing import Self

from rich.console import Console


class Spinning:
    """A context manager that shows a spinner on stderr if that is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._spinner = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()


class Phases(Spinning):
    """Prints a line with the seconds so far on stderr as each phase starts; a terminal has a spinner, too."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def report(self, phase: str) -> None:
        """Show that the phase described by `phase` has started."""
        line = f"{time.monotonic() - self._started:4.0f} s  {phase}"
        if self._spinner is not None:
            self._console.print(line, style="dim", highlight=False)
            self._spinner.update(phase)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)
