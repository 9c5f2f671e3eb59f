"""What happens in one drill."""

from steptime.frozen import Frozen


class Schedule(Frozen):
    """One drill: which, at which point of a run, in which way, and how long it lasts."""

    seed: int
    drill: str
    point: str
    way: str
    """Which of the drill's ways to do it; empty where there is one."""
    lasts_s: float
    """From the strike until it is mended."""
    goes_on_first: bool
    """Whether the run is let go before the fault is mended, or after it."""
    also: str
    """A second fault, half of that time later; empty for none."""
    step_s: float
    """Seconds per step of the stand-in trainer, which makes 20."""

    @property
    def command(self) -> str:
        """Does the same drill again."""
        return f"make drills SEED={self.seed}"

    def __str__(self) -> str:
        way = f" ({self.way})" if self.way else ""
        also = f", then {self.also}" if self.also else ""
        order = "the run goes on first" if self.goes_on_first else "it is mended first"
        return f"seed {self.seed}: {self.drill}{way}, {self.point}, for {self.lasts_s:.1f} s{also}, {order}"
