"""What a workload's file must have, and cannot have, for recipes that Megatron-Bridge knows by name."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from steptime.errors import UserError
from steptime.recipes.config_files import Document
from steptime.recipes.config_problems import Location, Mistake
from steptime.recipes.megatron_bridge import known_recipe, misfit, misnamed, set_already
from steptime.recipes.models import NamedRecipe
from steptime.recipes.parameters import misnamed_size
from steptime.recipes.performance_rules import PerformanceRules
from steptime.recipes.workload_file import Platform
from steptime.recipes.workload_parts import is_read, keys_of, named_of, rules_of


def _proxies(document: Document) -> Iterator[Mistake]:
    """Nobody knows what of such a model could be otherwise."""
    for placed in rules_of(document):
        if named_of(document, placed.size) is not None and (placed.kind == "proxies" or placed.rule.is_proxy):
            yield Mistake(
                "is for models that are described by their sizes: this one is known by name", placed.location
            )


def _stages(document: Document) -> Iterator[Mistake]:
    for placed in rules_of(document):
        for field in ("first_stage_layers", "last_stage_layers"):
            given = getattr(placed.rule.parallelism, field)
            if given is not None and named_of(document, placed.size) is not None:
                yield Mistake(
                    "is upstream's to choose for a recipe by name: leave it out",
                    (*placed.location, "parallelism", field),
                )


def _launch(document: Document) -> Iterator[Mistake]:
    """Upstream's recipe has the settings of its trainer itself; what is of the job is the workload's."""
    named = {size for size in keys_of(document, "sizes") if named_of(document, size) is not None}
    rules, _ = document.part(PerformanceRules, "performance")
    for index, rule in enumerate(rules.rules if rules is not None else ()):
        if rule.trainer.model_fields_set and named.intersection(rule.sizes or keys_of(document, "sizes")):
            yield Mistake(
                "sets up steptime's own trainer, and Megatron-Bridge starts a recipe by name with its own "
                "settings: leave it out, or name other sizes",
                ("performance", "rules", index, "trainer"),
            )
        if (
            rule.arguments
            and is_read(document, "sizes")
            and not named.issuperset(rule.sizes or keys_of(document, "sizes"))
        ):
            yield Mistake(
                "are for Megatron-Bridge's script, which starts recipes by name: leave them out, or name "
                "sizes that are such",
                ("performance", "rules", index, "arguments"),
            )
        for name in set_already(rule.arguments, _all_images(document)):
            yield Mistake(
                "is set already, for each row or run: leave it out",
                ("performance", "rules", index, "arguments", name),
            )


def _releases(document: Document) -> Iterator[Mistake]:
    """The image of each row has a release that starts such a recipe."""
    told = set()
    for placed in rules_of(document):
        model, rule = named_of(document, placed.size), placed.rule
        for gpu_type, dtype in itertools.product(rule.gpu_types, rule.dtypes) if model is not None else ():
            platform, _ = document.part(Platform, "gpu_types", gpu_type)
            if platform is None or model is None:
                continue
            place: Location = placed.location
            spread = rule.parallelism
            try:
                problem = misfit(model, image=platform.image, gpu_type=gpu_type, dtype=dtype, spread=spread)
            except UserError as error:
                problem, place = str(error).removesuffix("."), ("gpu_types", gpu_type, "image")
            if problem is not None and (problem, place) not in told:
                told.add((problem, place))
                yield Mistake(problem, place)


def _names(document: Document) -> Iterator[Mistake]:
    """Each size's recipe is one that its images have, and has the parameters that the size's name states."""
    for size in keys_of(document, "sizes"):
        model = named_of(document, size)
        problems = (_misnamed(size, model, image) for image in _images(document, size)) if model else ()
        if (problem := next(filter(None, problems), None)) is not None:
            yield replace(problem, location=("sizes", size, "model", *problem.location))


def _misnamed(size: str, model: NamedRecipe, image: str | None) -> Mistake | None:
    try:
        problem, known = misnamed(model, image), known_recipe(model, image)
    except UserError:
        return None  # of the image: `_releases` has it
    sentence = misnamed_size(size, model, known) if problem is None and known is not None else None
    return problem if sentence is None else Mistake(sentence)


def _all_images(document: Document) -> Iterator[str | None]:
    for gpu_type in keys_of(document, "gpu_types"):
        platform, _ = document.part(Platform, "gpu_types", gpu_type)
        if platform is not None:
            yield platform.image


def _images(document: Document, size: str) -> list[str | None]:
    """Those that a size's rows run in, each once."""
    types = {
        gpu_type for placed in rules_of(document) if placed.size == size for gpu_type in placed.rule.gpu_types
    }
    platforms = (document.part(Platform, "gpu_types", gpu_type)[0] for gpu_type in sorted(types))
    return list(dict.fromkeys(platform.image for platform in platforms if platform is not None))


NAMED_CHECKS = (_names, _proxies, _stages, _launch, _releases)
