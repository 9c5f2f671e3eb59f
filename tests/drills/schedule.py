"""The schedule of one drill."""

from steptime.frozen import Frozen


class Schedule(Frozen):
    """The drill, the point of a run at which it strikes, how it strikes, and how long it lasts."""

    seed: int
    drill: str
    point: str
    way: str
    """One of the drill's `ways`; empty if it has only one."""
    lasts_s: float
    """Seconds from the strike to the mending."""
    goes_on_first: bool
    """Whether the run goes on before the fault is mended, or after it."""
    also: str
    """A second fault, half of `lasts_s` later; empty for none."""
    step_s: float
    """Seconds per step of the stand-in trainer, which makes 20 steps."""

    @property
    def command(self):
        """Return the command that repeats the drill."""
        return f"make drills SEED={self.seed}"

    def __str__(self):
        way = f" ({self.way})" if self.way else ""
        also = f", then {self.also}" if self.also else ""
        order = "the run goes on first" if self.goes_on_first else "it is mended first"
        return f"seed {self.seed}: {self.drill}{way}, {self.point}, for {self.lasts_s:.1f} s{also}, {order}"
