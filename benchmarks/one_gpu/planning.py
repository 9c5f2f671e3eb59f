"""Plan the runs of one model on one GPU: two numbers of layers that fit into its memory, and a profile."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from one_gpu.results import MODEL_FILE, write_whole

if TYPE_CHECKING:
    from steptime.recipes.models import Mode, ModelShape, Recipe, Run

MODELS = (("llama3.1", "8b", "bf16"), ("llama3.1", "8b", "fp8"), ("nemotron4", "15b", "bf16"))
"""Workload, size and number format; a document has each of them on H100."""
EXACT_FORMULAS = {"llama": "llama3.1-25.04", "nemotron4": "nemotron4-25.12"}
"""Formula by architecture that counts every matrix product once (docs/reference/metrics.md)."""
STEPS, FIRST_MEASURED, PROFILED_STEP = 25, 10, 5
TRIAL_STEPS, FIRST_OF_TRIAL = 8, 4
"""Steps of a trial on the CPU, and the first measured one."""
MOST_LAYERS = 12
WITHIN_S = 570
"""Time limit of one `measure` in seconds: less than ten minutes."""

MEMORY_GIB = {"h100": 78, "h200": 139}
"""About as much as CUDA can use of 80 and 141 GB."""
USABLE = 0.93
"""Share of the memory that plans use: the estimate does not cover everything."""
SLOW_MFU = 0.4
"""MFU that durations are planned with, below the expected one."""
STATE_BYTES = 16
"""Bytes per parameter: weight and gradient in bf16; weight and Adam's two moments in fp32."""


def parameters(shape: "ModelShape") -> int:
    """Return the number of parameters in matrices; norms add about a millionth."""
    hidden, gated = shape.hidden_size, shape.architecture == "llama"
    attention = 2 * hidden**2 * (1 + shape.num_query_groups / shape.num_attention_heads)
    mlp = (3 if gated else 2) * hidden * shape.ffn_hidden_size
    return int(shape.num_layers * (attention + mlp) + 2 * shape.vocab_size * hidden)


def shape_of(recipe: "Recipe") -> "ModelShape":
    """Return the sizes of a recipe's model; the models of `MODELS` all have some."""
    return cast("ModelShape", recipe.model)


def memory_gib(recipe: "Recipe") -> float:
    """Estimate the GPU memory of a training: state, logits, and activations kept for the backward pass."""
    shape = shape_of(recipe)
    tokens = recipe.micro_batch_size * shape.seq_length
    groups = shape.num_query_groups / shape.num_attention_heads
    # What came in, two norms, queries with keys and values, those two rotated, what was attended to, the sum.
    attention = shape.hidden_size * (7 + 3 * groups)
    mlp = shape.ffn_hidden_size * (3 if shape.architecture == "llama" else 2)
    kept = 2 * tokens * shape.num_layers * (attention + mlp)
    logits = 2 * 2 * tokens * shape.vocab_size  # and their gradients
    newest_gradient = 2 * shape.vocab_size * shape.hidden_size
    # The largest gradient in fp32, when the layers keep nothing any more.
    in_adam = 4 * shape.vocab_size * shape.hidden_size
    beside = max(kept + logits + newest_gradient, in_adam)
    return (STATE_BYTES * parameters(shape) + beside) / 2**30


def depths(recipe: "Recipe", gpu_type: str) -> tuple[int, int]:
    """Return two numbers of layers: what the memory holds (at most `MOST_LAYERS`), and a quarter of that."""
    if gpu_type == "cpu":
        return 1, 2
    most = max(
        (layers for layers in range(1, MOST_LAYERS + 1) if _fits(of_depth(recipe, layers), gpu_type)),
        default=0,
    )
    if most < 2:
        sys.exit(
            f"two layers of {recipe.workload} {recipe.size} do not fit into the memory of one {gpu_type}."
        )
    return max(1, most // 4), most


def _fits(recipe: "Recipe", gpu_type: str) -> bool:
    return memory_gib(recipe) <= USABLE * MEMORY_GIB[gpu_type]


def of_depth(recipe: "Recipe", layers: int) -> "Recipe":
    """Return the recipe with another number of layers."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"num_layers": layers})})


def published_recipe(workload: str, size: str, dtype: str) -> "Recipe":
    """Return the recipe of the smallest published scale of a model on H100."""
    from steptime.recipes.planning import PlanRequest, plan

    return plan(PlanRequest(workload=workload, size=size, dtype=dtype, gpu_type="h100")).runs[0].recipe


def one_gpu_recipe(published: "Recipe", gpu_type: str) -> "Recipe":
    """Return the document's model for one GPU, with its batch per GPU; a tiny one on the CPU."""
    from steptime.recipes.models import Parallelism
    from steptime.recipes.planning import PlanRequest, plan

    recipe, batch_size = published, published.global_batch_size // published.gpus
    if gpu_type == "cpu":
        request = PlanRequest(workload=published.workload, size="tiny", gpu_type="cpu")
        recipe = plan(request).runs[0].recipe
        batch_size = 2 * recipe.micro_batch_size
    return recipe.model_copy(
        update={
            "dtype": published.dtype,
            "proxy": True,
            "gpu_type": gpu_type,
            "gpus_per_node": 1,
            "parallelism": Parallelism(data=1),
            "global_batch_size": batch_size,
            "image": None,
        }
    )


def planned_run(recipe: "Recipe", layers: int, mode: "Mode") -> "Run":
    """Return a run with this number of layers."""
    from steptime.recipes.flops import model_flops
    from steptime.recipes.models import Mode, Performance, ProfileWindow, Run, TrainerSettings, Window

    proxy = of_depth(recipe, layers).model_copy(update={"size": f"{recipe.size}-{layers}-layers"})
    on_gpu, profiles = recipe.gpu_type != "cpu", mode is Mode.PROFILE
    steps, first = (STEPS, FIRST_MEASURED) if on_gpu else (TRIAL_STEPS, FIRST_OF_TRIAL)
    profile = ProfileWindow(first_step=PROFILED_STEP, last_step=PROFILED_STEP, ranks=(0,))
    return Run(
        experiment=f"one_gpu_{recipe.workload}_{proxy.size}_{recipe.dtype}",
        recipe=proxy,
        mode=mode,
        max_steps=PROFILED_STEP + 1 if profiles else steps,
        window=Window(first=first, last=steps - 1),
        time_limit_s=WITHIN_S,
        cluster="one_gpu",
        performance=Performance(
            trainer=TrainerSettings(fp8_recipe="current" if recipe.dtype == "fp8" else None)
        ),
        profile=profile if profiles else None,
        model_flops=model_flops(proxy.model, recipe.flops_formula),
    )


def seconds(run: "Run", peak_tflops: float) -> float:
    """Return the seconds that the run trains at `SLOW_MFU`, without its start."""
    step_flops = (run.model_flops or 0.0) * run.recipe.global_batch_size
    return run.max_steps * step_flops / (SLOW_MFU * peak_tflops * 1e12)


def write_plan(folder: Path, gpu_type: str) -> None:
    """Write a folder for each model, with its runs and what `report` needs."""
    from steptime.recipes.flops import model_flops
    from steptime.recipes.gpus import load_gpu_type
    from steptime.recipes.models import RUN_FILE, Mode
    from steptime.recipes.published import published_performance

    for workload, size, dtype in MODELS:
        published = published_recipe(workload, size, dtype)
        recipe = one_gpu_recipe(published, gpu_type)
        few, many = depths(recipe, gpu_type)
        runs = {
            f"{few}-layers": planned_run(recipe, few, Mode.PERFORMANCE),
            f"{many}-layers": planned_run(recipe, many, Mode.PERFORMANCE),
            f"{few}-layers-profile": planned_run(recipe, few, Mode.PROFILE),
        }
        place = folder / f"{workload}-{size}-{dtype}"
        for name, run in runs.items():
            (place / name).mkdir(parents=True, exist_ok=True)
            write_whole(place / name / RUN_FILE, run.model_dump_json(indent=1))
        whole = published if gpu_type != "cpu" else of_depth(recipe, 2 * many)
        formulas = {"document": recipe.flops_formula, "exact": EXACT_FORMULAS[recipe.model.architecture]}
        reference = published_performance(published)
        peak = load_gpu_type(gpu_type).peak_tflops.get(dtype)
        write_whole(
            place / MODEL_FILE,
            {
                "gpu_type": gpu_type,
                "runs": list(runs),
                "layers": [few, many, whole.model.num_layers],
                "peak_tflops": peak,
                "formulas": formulas,
                "flops_per_sample": {
                    name: [
                        model_flops(of_depth(whole, layers).model, formula)
                        for layers in (few, many, shape_of(whole).num_layers)
                    ]
                    for name, formula in formulas.items()
                },
                "published": None
                if gpu_type == "cpu" or reference is None
                else {
                    "mfu_percent": reference.mfu_percent,
                    "gpus": f"{published.gpus} × {published.gpu_type}",
                    "formula": published.flops_formula,
                },
            },
        )
        print(f"{place}: {few} and {many} of {whole.model.num_layers} layers")
        if peak != "measured" and peak is not None:
            memory, training_s = (
                memory_gib(of_depth(recipe, many)),
                sum(seconds(run, peak) for run in runs.values()),
            )
            print(f"  by estimate {memory:.0f} GiB, and {training_s:.0f} s of training at {SLOW_MFU:.0%} MFU")
