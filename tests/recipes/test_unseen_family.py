"""GLM-4.5, which steptime does not ship, from one YAML file: held to the numbers that are published of it."""

from pathlib import Path

import pytest
from printed_tables import config_with

from steptime.recipes.flops import recipe_flops
from steptime.recipes.models import ModelShape, Recipe
from steptime.recipes.parameters import count_parameters
from steptime.recipes.workloads import load_workload

UNSEEN = Path(__file__).parents[1] / "data" / "unseen"
GLM = "glm4.5-26.08"
VOCABULARY = 151_552


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Recipe]:
    """Its row on H100, by size."""
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config_with(UNSEEN, tmp_path / "config")))
    return {one.size: one for one, _ in load_workload(GLM).recipes() if one.gpu_type == "h100"}


@pytest.mark.parametrize(
    ("size", "published", "spread"),
    [
        # NVIDIA-NeMo/Megatron-Bridge v0.6.0, docs/models/glm/glm45.md: TP, PP, EP, GPUs.
        ("355b-a32b", (355, 32), (2, 8, 16, 256)),
        ("106b-a12b", (106, 12), (1, 4, 8, 32)),
    ],
)
def test_it_is_as_published(
    rows: dict[str, Recipe], size: str, published: tuple[int, int], spread: tuple[int, ...]
) -> None:
    model, parallelism = rows[size].model, rows[size].parallelism
    assert isinstance(model, ModelShape)
    assert (parallelism.tensor, parallelism.pipeline, parallelism.expert, rows[size].gpus) == spread
    counted = count_parameters(model)
    assert counted is not None
    total, active = published
    assert counted.total / 1e9 == pytest.approx(total, rel=0.01)
    # Published without the embedding and the output, of which a token uses a row each.
    assert round((counted.active - 2 * VOCABULARY * model.hidden_size) / 1e9) == active


def test_flops_are_those_of_its_matrices(rows: dict[str, Recipe]) -> None:
    heads, key_heads, further = 96 * 128, 8 * 128, 1
    for size, hidden, layers, mlps in (
        ("355b-a32b", 5120, 92, 3 * 12288 + (89 + further) * (8 + 1) * 1536),
        ("106b-a12b", 4096, 46, 1 * 10944 + (45 + further) * (8 + 1) * 1408),
    ):
        attention = (layers + further) * 2 * hidden * (heads + key_heads)
        weights = attention + 3 * hidden * mlps + 2 * VOCABULARY * hidden + 2 * hidden**2
        scores = (layers + further) * 4096 * heads  # of each query half of the keys, twice
        assert recipe_flops(rows[size]).per_sample == 6 * 4096 * (weights + scores)
