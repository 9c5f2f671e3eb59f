"""A kind of cluster with one option of a run."""

from functools import partial

from steptime.recipes.options import ClusterOptions, option

_option = partial(option, "ACME", needs="On an ACME cluster")


class Options(ClusterOptions):
    clusters = "ACME"

    queue: str | None = _option("Queue of ACME.", examples=["fast"])
