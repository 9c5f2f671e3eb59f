"""Options for how and where a run uses machines, checked against the plan and the cluster's file."""

from collections.abc import Sequence

from steptime.errors import UserError
from steptime.recipes.image import parse_image
from steptime.recipes.models import Recipe
from steptime.recipes.named import NamedRecipe
from steptime.recipes.request import PlanRequest
from steptime.recipes.selection import Selection, clusters_of_kind
from steptime.recipes.slurm_options import SlurmOptions, parse_slurm_options

_OF_SLURM = (
    *("gpus_per_node", "gres", "partition", "account", "nodelist", "exclude", "reservation", "segment"),
    "additional_slurm_params",
)


def with_image(recipe: Recipe, request: PlanRequest, selection: Selection) -> Recipe:
    """Return the recipe with the image that was asked for.

    Raises UserError if it is no image or cannot be run.
    """
    if request.image is None:
        return recipe
    parse_image(request.image)
    if selection.cluster.container == "none":
        raise UserError(
            f"image needs a cluster that runs containers, and '{request.cluster}' runs none "
            "(container: none in its file): leave image out, or name another cluster."
        )
    return recipe.model_copy(update={"image": request.image})


def check_graphs_and_overlap(request: PlanRequest, selection: Selection, recipes: Sequence[Recipe]) -> None:
    """Raise UserError for CUDA graphs and overlap if there is no CUDA, or nothing to overlap with."""
    for name in ("cuda_graphs", "tp_comm_overlap"):
        if getattr(request, name) is not None and isinstance(selection.size.model, NamedRecipe):
            raise UserError(f"{name} of {selection} is its recipe's in Megatron-Bridge: leave it out.")
        if selection.gpu_type == "cpu" and getattr(request, name) is not None:
            raise UserError(f"{name} is for GPUs, and {selection} has none: leave it out.")
    for recipe in recipes:
        if request.tp_comm_overlap and recipe.parallelism.tensor == 1:
            raise UserError(
                f"tp_comm_overlap needs tensor parallelism, and {selection} on {recipe.gpus} GPUs has none: "
                "leave it out."
            )


def slurm_options(
    request: PlanRequest, selection: Selection, recipes: Sequence[Recipe]
) -> SlurmOptions | None:
    """Return what is asked of Slurm.

    Raises UserError for what is impossible, and if the cluster is not a Slurm cluster.
    """
    given = [name for name in _OF_SLURM if getattr(request, name) is not None]
    if not given:
        return None
    if selection.cluster.kind != "slurm":
        others = ", ".join(clusters_of_kind("slurm")) or "none yet"
        raise UserError(
            f"{given[0]} is for Slurm clusters, and '{request.cluster}' is of kind {selection.cluster.kind}: "
            f"leave it out, or name a Slurm cluster ({others})."
        )
    per_node = request.gpus_per_node or 1
    for recipe in recipes:
        if recipe.gpus > per_node and recipe.gpus % per_node:
            raise UserError(
                f"gpus_per_node {per_node} does not divide {recipe.gpus} GPUs: choose another number, "
                f"or leave {recipe.gpus} out of gpus."
            )
    asked = request.model_dump(include=set(_OF_SLURM) - {"additional_slurm_params"}, exclude_none=True)
    return parse_slurm_options(asked, request.additional_slurm_params)


def excluding(request: PlanRequest, exclude: str) -> PlanRequest:
    """Return the request with these nodes excluded, in place of any that it excluded before."""
    further = [part.strip(" ") for part in (request.additional_slurm_params or "").split(";")]
    kept = ";".join(part for part in further if part and part.partition("=")[0] != "exclude")
    return request.model_copy(update={"exclude": exclude, "additional_slurm_params": kept or None})
