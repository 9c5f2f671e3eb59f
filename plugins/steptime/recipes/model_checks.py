"""What a workload's models must be, for their names, for proxies, and for the ranks they are spread over."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from steptime.recipes.config_files import Document
from steptime.recipes.config_problems import Location, Mistake, misfits
from steptime.recipes.models import ModelShape
from steptime.recipes.parameters import contradiction
from steptime.recipes.workload_file import Configuration, ModelParallelism
from steptime.recipes.workload_parts import keys_of, model_of, model_of_rule, rules_of


def _names(document: Document) -> Iterator[Mistake]:
    """A size is the model that its name states: a stand-in would be published under that name."""
    for size in keys_of(document, "sizes"):
        model = model_of(document, size)
        problem = contradiction(size, model) if model is not None else None
        if problem is not None:
            yield Mistake(problem, ("sizes", size, "model"))


def _heads(document: Document) -> Iterator[Mistake]:
    for size in keys_of(document, "sizes"):
        model = model_of(document, size)
        if model is not None and model.num_attention_heads % model.num_query_groups:
            yield Mistake(
                f"{model.num_attention_heads} attention heads cannot be shared out to "
                f"{model.num_query_groups} query groups: give a number that divides them",
                ("sizes", size, "model", "num_query_groups"),
            )
    for location, size, rule in rules_of(document):
        model = model_of(document, size)
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
    for placed in rules_of(document):
        spread, model = placed.rule.parallelism, model_of_rule(document, placed)
        place = (*placed.location, "parallelism", "expert" if spread.expert is not None else "expert_tensor")
        if model is None or (spread.expert is None and spread.expert_tensor is None):
            continue
        if model.moe is None:
            yield Mistake("is for mixtures of experts, and this model has none: leave it out", place)
            continue
        if spread.expert is None:
            yield Mistake(
                "goes with expert, which is missing: give it, 1 for all experts on each rank", place
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
                f"an expert's moe_ffn_hidden_size of {width} cannot be spread over expert tensor parallel "
                f"{spread.expert_tensor or spread.tensor}: give a number that divides it",
                (*placed.location, "parallelism", "expert_tensor"),
            )


def _proxies(document: Document) -> Iterator[Mistake]:
    for placed in rules_of(document):
        rule, whole = placed.rule, document.value("sizes", placed.size, "model")
        if placed.kind == "configurations" and rule.is_proxy:
            field = "num_layers" if rule.model is None else "model"
            yield Mistake("is for proxies: a configuration runs the whole model", (*placed.location, field))
        elif placed.kind == "proxies" and not rule.is_proxy:
            yield Mistake(
                "a proxy needs its num_layers, or what else of its model is otherwise", placed.location
            )
        elif rule.is_proxy and model_of(document, placed.size) is not None:
            yield from _misfits_of_changes(rule, whole, placed.location)


def _misfits_of_changes(rule: Configuration, whole: Mapping[str, Any], place: Location) -> Iterator[Mistake]:
    try:
        ModelShape.model_validate_json(json.dumps(rule.changed(whole)), strict=True)
    except ValidationError as error:
        for problem in misfits(error):
            yield replace(problem, location=(*place, "model", *problem.location))


def _layers(document: Document) -> Iterator[Mistake]:
    for placed in rules_of(document):
        spread, model = placed.rule.parallelism, model_of_rule(document, placed)
        stages = spread.pipeline * (spread.virtual_pipeline or 1)
        if spread.pipeline == 1 < stages:
            yield Mistake(
                f"{stages} parts of each stage need more than one stage: raise pipeline, or leave this out",
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
    """Layers of the stages that have a number of their own, by field."""
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
                f"{layers} layers cannot be spread over {parts} parts of the stage", (*place, field)
            )
    if left < others or (left % others if others else left):
        yield Mistake(
            f"{num_layers} layers less these {sum(own.values())} cannot be spread over the other {others} "
            "pipeline stages",
            (*place, next(iter(own))),
        )


def _countings(model: ModelShape) -> tuple[int, ...]:
    """How many layers the stages may share out.

    Llama 405b counts embedding and output as a layer each, so that 126 + 2 divide; DeepSeek-V3 also its layer
    that predicts a further token: 61 + 3.
    """
    further = model.mtp_num_layers or 0
    return tuple(dict.fromkeys(model.num_layers + more for more in (0, 2, 2 + further)))


MODEL_CHECKS = (_names, _heads, _experts, _proxies, _layers)
