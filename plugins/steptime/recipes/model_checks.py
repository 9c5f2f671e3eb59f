"""Checks of a workload's models: their names, their proxies, and whether they fit their parallelism."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from steptime.recipes.bridge_launch import find_image_mistake, find_repeated
from steptime.recipes.config_files import DESCRIBED, NAMED, Document, Location, Mistake, misfits
from steptime.recipes.models import ModelShape, NamedRecipe, kind_of_model
from steptime.recipes.parameters import contradiction
from steptime.recipes.performance_rules import PerformanceRules
from steptime.recipes.workload_file import Configuration, ModelParallelism, Platform, Steps

KINDS = ("configurations", "proxies")

_Model = TypeVar("_Model", ModelShape, NamedRecipe)


class Placed(NamedTuple):
    """A configuration in a workload file, with its location there (a path of keys).

    It is for a full model or for its proxy, a smaller stand-in with fewer layers or other changes.
    """

    location: Location
    size: str
    rule: Configuration

    @property
    def kind(self) -> str:
        """The kind of entry: `configurations` or `proxies`."""
        return str(self.location[2])

    def __str__(self) -> str:
        return ".".join(map(str, self.location))


def is_read(document: Document, part: str) -> bool:
    """Return whether the entries of `gpu_types` or `sizes` (`part`) of a workload file could be read."""
    return isinstance(document.value(part), dict)


def list_keys(document: Document, part: str) -> tuple[str, ...]:
    """Return the keys of `gpu_types` or `sizes`; empty if they cannot be read."""
    return tuple(document.value(part)) if is_read(document, part) else ()


def iterate_rules(document: Document) -> Iterator[Placed]:
    """Yield the readable configurations of all full models and proxies of a workload file, in order."""
    for size in list_keys(document, "sizes"):
        for kind in KINDS:
            listed = document.value("sizes", size, kind)
            for index in range(len(listed) if isinstance(listed, list) else 0):
                location = ("sizes", size, kind, index)
                rule, _ = document.part(Configuration, *location)
                if rule is not None:
                    yield Placed(location, size, rule)


def all_read(document: Document, size: str) -> bool:
    """Return whether all configurations of a size and its proxy could be read.

    If not, a value that seems to be missing may be in a configuration that could not be read.
    """
    configurations, proxies = (document.value("sizes", size, kind) for kind in KINDS)
    if not isinstance(configurations, list) or not isinstance(proxies, list | None):
        return False
    return len(configurations) + len(proxies or ()) == sum(
        one.size == size for one in iterate_rules(document)
    )


def find_model(document: Document, size: str) -> ModelShape | None:
    """Return the full model of a size; None if it cannot be read, or is not described by its dimensions."""
    return _model_as(ModelShape, DESCRIBED, document, size)


def find_named_recipe(document: Document, size: str) -> NamedRecipe | None:
    """Return the Megatron-Bridge recipe that a size names; None if it names none."""
    return _model_as(NamedRecipe, NAMED, document, size)


def _model_as(model: type[_Model], kind: str, document: Document, size: str) -> _Model | None:
    location = ("sizes", size, "model")
    if kind_of_model(document.value(*location)) != kind:  # no mistakes are made out of what it cannot be
        return None
    return document.part(model, *location)[0]


def find_steps(document: Document, size: str) -> Steps | None:
    """Return the steps of a size, its own or those of the workload; None if they cannot be read."""
    location = ("sizes", size, "steps")
    own = document.value(*location) is not None
    return document.part(Steps, *(location if own else ("steps",)))[0]


def model_of_rule(document: Document, placed: Placed) -> ModelShape | None:
    """Return the model that a configuration runs, smaller for a proxy; None where `find_model` has none.

    None also if the changes of a proxy do not fit the model.
    """
    whole = find_model(document, placed.size)
    if whole is None or not placed.rule.is_proxy:
        return whole
    try:
        return ModelShape.model_validate(placed.rule.changed(whole.model_dump()))
    except ValidationError:
        return None


def _names(document: Document) -> Iterator[Mistake]:
    """Check that each size's model has the number of parameters that the size's name states."""
    for size in list_keys(document, "sizes"):
        model = find_model(document, size) or find_named_recipe(document, size)
        problem = contradiction(size, model) if model is not None else None
        if problem is not None:
            yield Mistake(problem, ("sizes", size, "model"))


def _heads(document: Document) -> Iterator[Mistake]:
    for size in list_keys(document, "sizes"):
        model = find_model(document, size)
        if model is None:
            continue
        if model.kv_channels is None and model.mla is None and model.hidden_size % model.num_attention_heads:
            yield Mistake(
                f"a hidden_size of {model.hidden_size} cannot be divided among "
                f"{model.num_attention_heads} attention heads: correct one, or give kv_channels",
                ("sizes", size, "model", "hidden_size"),
            )
        if model.num_attention_heads % model.num_query_groups:
            yield Mistake(
                f"{model.num_attention_heads} attention heads cannot be divided among "
                f"{model.num_query_groups} query groups: give a number that divides them",
                ("sizes", size, "model", "num_query_groups"),
            )
    for location, size, rule in iterate_rules(document):
        model = find_model(document, size)
        asked = [((*location, "parallelism", "tensor"), rule.parallelism.tensor)]
        asked += [
            ((*location, "tensor_choices", index), tensor)
            for index, tensor in enumerate(rule.tensor_choices or ())
        ]
        for place, tensor in asked:
            if model is not None and model.num_attention_heads % tensor:
                yield Mistake(
                    f"{model.num_attention_heads} attention heads cannot be spread over tensor parallel "
                    f"{tensor}: give a number that divides them",
                    place,
                )


def _experts(document: Document) -> Iterator[Mistake]:
    for placed in iterate_rules(document):
        spread, model = placed.rule.parallelism, model_of_rule(document, placed)
        place = (*placed.location, "parallelism", "expert" if spread.expert is not None else "expert_tensor")
        if model is None or (spread.expert is None and spread.expert_tensor is None):
            continue
        if model.moe is None:
            yield Mistake("is for mixtures of experts, and this model has none: leave it out", place)
            continue
        if spread.expert is None:
            yield Mistake(
                "needs the field expert, which is missing: set it, to 1 if every rank has all experts", place
            )
            continue
        experts, width = model.moe.num_moe_experts, model.moe.moe_ffn_hidden_size
        if experts % spread.expert:
            yield Mistake(
                f"{experts} experts cannot be spread over expert parallel {spread.expert}: "
                "give a number that divides them",
                place,
            )
        if width % (spread.expert_tensor or spread.tensor):
            yield Mistake(
                f"an expert's moe_ffn_hidden_size of {width} cannot be spread over its tensor parallelism, "
                f"{spread.expert_tensor or spread.tensor} ranks: set expert_tensor to a divisor of {width}",
                (*placed.location, "parallelism", "expert_tensor"),
            )


def _proxies(document: Document) -> Iterator[Mistake]:
    for placed in iterate_rules(document):
        rule, whole = placed.rule, document.value("sizes", placed.size, "model")
        if placed.kind == "configurations" and rule.is_proxy:
            field = "num_layers" if rule.model is None else "model"
            yield Mistake(
                "is for proxies, which have fewer layers: a configuration runs the whole model",
                (*placed.location, field),
            )
        elif placed.kind == "proxies" and not rule.is_proxy:
            yield Mistake(
                "a proxy must change the model: set num_layers, or other fields of the model", placed.location
            )
        elif rule.is_proxy and find_model(document, placed.size) is not None:
            yield from _misfits_of_changes(rule, whole, placed.location)


def _misfits_of_changes(rule: Configuration, whole: Mapping[str, Any], place: Location) -> Iterator[Mistake]:
    try:
        ModelShape.model_validate_json(json.dumps(rule.changed(whole)), strict=True)
    except ValidationError as error:
        for problem in misfits(error):
            yield replace(problem, location=(*place, "model", *problem.location))


def _layers(document: Document) -> Iterator[Mistake]:
    for placed in iterate_rules(document):
        spread, model = placed.rule.parallelism, model_of_rule(document, placed)
        stages = spread.pipeline * (spread.virtual_pipeline or 1)
        if spread.pipeline == 1 < stages:
            yield Mistake(
                f"{stages} virtual stages need more than one pipeline stage: raise pipeline, or leave this "
                "out",
                (*placed.location, "parallelism", "virtual_pipeline"),
            )
            continue
        if model is not None and _uneven(spread):
            yield from _misfits_of_uneven_stages(spread, model.num_layers, (*placed.location, "parallelism"))
            continue
        if model is not None and all(layers % stages for layers in _countings(model)):
            yield Mistake(
                f"{' or '.join(map(str, _countings(model)))} layers cannot be spread over {stages} "
                "pipeline stages",
                (*placed.location, "parallelism"),
            )


def _uneven(spread: ModelParallelism) -> dict[str, int]:
    """Return the explicit layer counts of the first and last stage, by field."""
    given = {"first_stage_layers": spread.first_stage_layers, "last_stage_layers": spread.last_stage_layers}
    return {field: layers for field, layers in given.items() if layers is not None}


def _misfits_of_uneven_stages(
    spread: ModelParallelism, num_layers: int, place: Location
) -> Iterator[Mistake]:
    own, parts = _uneven(spread), spread.virtual_pipeline or 1
    left, others = num_layers - sum(own.values()), (spread.pipeline - len(own)) * parts
    for field, layers in own.items():
        if spread.pipeline == 1:
            yield Mistake(
                "is for a pipeline of several stages: leave it out, or raise pipeline", (*place, field)
            )
            return
        if layers % parts:
            yield Mistake(
                f"{layers} layers cannot be spread over the stage's {parts} virtual stages", (*place, field)
            )
    if left < others or (left % others if others else left):
        yield Mistake(
            f"{num_layers} layers minus these {sum(own.values())} cannot be spread over the other {others} "
            "pipeline stages",
            (*place, next(iter(own))),
        )


def _countings(model: ModelShape) -> tuple[int, ...]:
    """Return the layer counts of which one must be divisible by the number of pipeline stages.

    The stages include virtual ones. More than the transformer layers may count: in Llama 405b embedding and
    output as well (126 + 2), in DeepSeek-V3 also the layer for multi-token prediction (61 + 3).
    """
    further = model.mtp_num_layers or 0
    return tuple(dict.fromkeys(model.num_layers + more for more in (0, 2, 2 + further)))


MODEL_CHECKS = (_names, _heads, _experts, _proxies, _layers)


def _named_proxies(document: Document) -> Iterator[Mistake]:
    """Yield a mistake for each proxy (a model with fewer layers) if the file only names a recipe.

    steptime does not know the sizes of a Megatron-Bridge recipe's model, and cannot change them.
    """
    for placed in iterate_rules(document):
        if find_named_recipe(document, placed.size) is not None and (
            placed.kind == "proxies" or placed.rule.is_proxy
        ):
            yield Mistake(
                "is for models whose sizes are in this file, which only names a Megatron-Bridge recipe: "
                "leave it out",
                placed.location,
            )


def _stages(document: Document) -> Iterator[Mistake]:
    for placed in iterate_rules(document):
        for field in ("first_stage_layers", "last_stage_layers"):
            given = getattr(placed.rule.parallelism, field)
            if given is not None and find_named_recipe(document, placed.size) is not None:
                yield Mistake(
                    "is set by the Megatron-Bridge recipe that this file names: leave it out",
                    (*placed.location, "parallelism", field),
                )


def _launch(document: Document) -> Iterator[Mistake]:
    """Yield a mistake for launch settings that steptime sets itself, or the training program does not read.

    A rule may set `trainer` only for sizes that steptime's own trainer trains, and `arguments` only for sizes
    that Megatron-Bridge's script trains (`NamedRecipe`).
    """
    named = {size for size in list_keys(document, "sizes") if find_named_recipe(document, size) is not None}
    rules, _ = document.part(PerformanceRules, "performance")
    for index, rule in enumerate(rules.rules if rules is not None else ()):
        if rule.trainer.model_fields_set and named.intersection(rule.sizes or list_keys(document, "sizes")):
            yield Mistake(
                "is for steptime's own trainer, which does not train all sizes of this rule: leave it out, "
                "or limit the rule to sizes that are not recipes of Megatron-Bridge",
                ("performance", "rules", index, "trainer"),
            )
        if (
            rule.arguments
            and is_read(document, "sizes")
            and not named.issuperset(rule.sizes or list_keys(document, "sizes"))
        ):
            yield Mistake(
                "are for Megatron-Bridge's script, which does not train all sizes of this rule: leave them "
                "out, or limit the rule to sizes that are recipes of Megatron-Bridge",
                ("performance", "rules", index, "arguments"),
            )
        launches = [model.launch for size in named if (model := find_named_recipe(document, size))]
        for name in sorted({name for launch in launches for name in find_repeated(rule.arguments, launch)}):
            yield Mistake(
                "is already set by steptime for each run: leave it out",
                ("performance", "rules", index, "arguments", name),
            )


def _launch_images(document: Document) -> Iterator[Mistake]:
    """Check that the launch of each Megatron-Bridge recipe is for the images in which its rows run."""
    told = set()
    for placed in iterate_rules(document):
        model = find_named_recipe(document, placed.size)
        for gpu_type in placed.rule.gpu_types if model is not None else ():
            platform, _ = document.part(Platform, "gpu_types", gpu_type)
            problem = (
                None
                if platform is None or model is None
                else find_image_mistake(model.launch, platform.image)
            )
            if problem is not None and (problem, placed.size) not in told:
                told.add((problem, placed.size))
                yield Mistake(problem, placed.location)


NAMED_CHECKS = (_named_proxies, _stages, _launch, _launch_images)
