"""A kind of cluster with one option of a run."""

from functools import partial

from steptime.recipes.options import ClusterOptions, option

_option = partial(option, "ACME", needs="On an ACME cluster")


class Options(ClusterOptions):
    clusters = "ACME"

    share: float | None = _option("Share of a node that a rank takes.", gt=0, le=1)
    queue: str | None = _option("Queue of ACME.", examples=["fast"])
