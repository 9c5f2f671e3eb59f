"""A model family and a check."""

from steptime.store.run_models import Check


def check_family(shape):
    if shape.num_query_groups != 1:
        raise ValueError("acme models have one query group")


def cheap(finished):
    gpus = finished.run.recipe.gpus
    yield Check(name="acme_cheap", passed=gpus < 2, message=f"It took {gpus} GPUs.", severity="warning")
