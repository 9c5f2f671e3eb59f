"""The models of `recipes`: their defaults, and values that do not go together."""

from pydantic import ValidationError

from steptime.recipes.models import Window
from steptime.recipes.planning import parse_request, plan
from steptime.recipes.workloads import load_workload

RUN = plan(parse_request({"workload": "llama3.1", "gpus": "2"})).runs[0]
HYBRID = load_workload("nemotron-h").sizes["56b"].model


def refusal(model, **changed):
    """Return why a model is refused with these values, or an empty text if it is accepted."""
    try:
        type(model).model_validate(model.model_dump() | changed)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


IMPOSSIBLE = {
    "a window that ends before it begins": (Window(first=1, last=1), {"last": 0}, "window 1:0 ends before"),
    "another schema": (RUN, {"schema_version": 2}, "should be 1"),
    "batches that are no micro batches": (
        RUN.recipe,
        {"global_batch_size": 15},
        "global batch size 15 is not a multiple of micro batch size 1 × data parallel 2 = 2",
    ),
    "hybrid sizes of a plain model": (
        RUN.recipe.model,
        {"hybrid": HYBRID.hybrid},
        "llama models have no hybrid sizes: leave hybrid out",
    ),
    "hybrid layers that do not add up": (
        HYBRID,
        {"num_layers": 1},
        "hybrid layers do not add up to num_layers, 1",
    ),
}


def test_what_does_not_go_together_is_refused():
    wrong = {
        name: (said, complaint)
        for name, (model, changed, complaint) in IMPOSSIBLE.items()
        if complaint not in (said := refusal(model, **changed)) or refusal(model)
    }
    assert not wrong


def test_a_pattern_counts_the_layers_of_each_kind():
    assert HYBRID.hybrid is not None
    counts = {"num_attention_layers": 1, "num_mlp_layers": 2, "num_mamba_layers": 3}
    assert refusal(HYBRID.hybrid, pattern="M-M-M*", **counts) == ""
    assert refusal(HYBRID.hybrid, pattern=None, **counts) == ""
    for pattern in ("M-M-M", "M-M-M*M", "M-M-M**", "M-M-M*-", "M-M-M*x", ""):
        assert "pattern has the layers" in refusal(HYBRID.hybrid, pattern=pattern, **counts), pattern
