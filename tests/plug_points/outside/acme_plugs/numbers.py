"""A model family and a check."""

from collections.abc import Iterator

from steptime.measure.quality import FinishedRun
from steptime.recipes.models import ModelShape
from steptime.store.run_models import Check


def check_family(shape: ModelShape) -> None:
    if shape.num_query_groups != 1:
        raise ValueError("acme models have one query group")


def cheap(finished: FinishedRun) -> Iterator[Check]:
    gpus = finished.run.recipe.gpus
    yield Check(name="acme_cheap", passed=gpus < 2, message=f"It took {gpus} GPUs.", severity="warning")
