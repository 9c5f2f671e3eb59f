"""Write a workload file from a release's recorded recipe: small, stable, and readable as a diff.

Runs with common settings become rules with conditions. What cannot be imported is reported, never guessed.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from steptime.errors import SystemFailure
from steptime.recipes.importing.release import (
    Release,
    Sandbox,
    UpstreamRecipe,
    UpstreamRun,
    names_batch,
    record_jobs,
)

WRITTEN_BY = "# Written by steptime recipes import"
"""Beginning of every file that an import may replace."""

_EXPERIMENT = re.compile(
    r"gpus\d+_tp(\d+)_pp(\d+)_cp(\d+)_vp(\d+|None)_ep(\d+|None)_etp(\d+|None)_mbs(\d+)_gbs(\d+)"
)
_EXPERIMENT_TEMPLATE = (
    "{size}_{dtype}_gpus{gpus}_tp{tp}_pp{pp}_cp{cp}_vp{vp}_ep{ep}_etp{etp}_mbs{mbs}_gbs{gbs}"
)
_BINDING = re.compile(
    r"numactl --cpunodebind=\$\(\(SLURM_LOCALID/(\d+)\)\) --membind=\$\(\(SLURM_LOCALID/\1\)\)(.*)"
)
_OF_LIBRARIES = re.compile(r"(CUBLAS|CUDA|CUDNN|CUDNNFE|GLOO|NCCL|NVTE|NVSHMEM|OMP|PYTORCH|TE|TORCH|UCX)_")
"""Pattern of a launch script's variables for the training; all others are for upstream's launcher."""
_OUR_DTYPES = {"fp8_sc": "fp8_ss"}
_WORDS = {
    **{"--model_family_name": "{family}", "--model_recipe_name": "{recipe}", "--gpu": "{gpu_type}"},
    **{"--num_gpus": "{gpus}", "--compute_dtype": "{dtype}", "--max_steps": "{max_steps}"},
}
_NOT_OURS = ("--hf_token", "--wandb_key")
"""Options with secrets, which steptime does not handle."""
_SET_UP = "--save_config_filepath=ConfigContainer.yaml"
"""Argument that replaces upstream's default, a folder of NeMo-Run that steptime's jobs do not have."""
_PROFILE = (
    *("profiling.use_nsys_profiler=true", "profiling.profile_step_start={profile_start}"),
    *("profiling.profile_step_end={profile_end}", "profiling.profile_ranks=[{profile_ranks}]"),
    "profiling.record_shapes=false",
)
_DIMENSIONS = ("gpu_types", "sizes", "dtypes", "gpus")
_OF_BINDING = ("ranks_per_numa_node", "priority_cores")
_ORDER = (*_DIMENSIONS, "cluster_kinds", *_OF_BINDING, "environment", "arguments")
_PARALLELISM = ("tensor", "pipeline", "context", "virtual_pipeline", "expert", "expert_tensor")


class NotImportable(Exception):
    """Raised for a recipe that cannot be imported; the message says why."""


@dataclass(frozen=True)
class RecordedRun:
    """One run as upstream's launch script submits it."""

    sizes: str
    gpu_types: str
    dtypes: str
    """Number format in steptime's terms, such as `fp8_mx`."""
    gpus: int
    upstream: UpstreamRun = field(compare=False)
    """The run as in upstream's metadata."""
    job: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def words(self) -> dict[str, str]:
        """The script's arguments that have a value, by name without dashes."""
        return {words[0].removeprefix("--"): words[1] for words in self.job["arguments"] if len(words) > 1}

    @property
    def spread(self) -> tuple[dict[str, int], int, int]:
        """Parallelism, micro and global batch size, from upstream's experiment name.

        Raises NotImportable if the name has an unknown form.
        """
        match = _EXPERIMENT.search(self.job["experiment"])
        if match is None:
            raise NotImportable(
                f"the names of its experiments have an unknown form: {self.job['experiment']}"
            )
        *degrees, micro, whole = match.groups()
        named = {
            name: int(degree) for name, degree in zip(_PARALLELISM, degrees, strict=True) if degree != "None"
        }
        if named.get("expert") == 1:
            named.pop("expert_tensor", None)
            del named["expert"]
        return named, int(micro), int(whole)

    @property
    def environment(self) -> dict[str, str]:
        """The job's variables, without secrets and without paths of upstream's installation folder."""
        exported = {name: value for name, value in self.job["exported"].items() if _OF_LIBRARIES.match(name)}
        both = exported | self.job["executor"]["env_vars"]
        return {
            name: value for name, value in sorted(both.items()) if name != "HF_TOKEN" and "/llmb" not in value
        }


def recorded_rows(source: UpstreamRecipe, jobs: Mapping[UpstreamRun, Mapping[str, Any]]) -> list[RecordedRun]:
    """Return the runs that a recipe's launch script submits. Raises NotImportable if it refuses all."""
    rows = []
    for run, job in jobs.items():
        if "refused" not in job:
            told = {words[0]: words[1] for words in job["arguments"] if len(words) > 1}
            dtype = _OUR_DTYPES.get(told["--compute_dtype"], told["--compute_dtype"])
            rows.append(RecordedRun(run.size, run.gpu_type, dtype, run.gpus, run, job))
    if not rows:
        raise NotImportable(
            f"{source.script} of this recipe refuses every run: {next(iter(jobs.values()))['refused']}"
        )
    return rows


def name_workload(release: Release, source: UpstreamRecipe) -> str:
    """Return the name of a recipe's workload: `gpt-oss-mlperf-26.08`."""
    return f"{source.name.replace('_', '-')}-{'.'.join(release.version.split('.')[:2])}"


def workload_text(
    release: Release,
    source: UpstreamRecipe,
    rows: Sequence[RecordedRun],
    profile: Mapping[str, Any],
    described: Mapping[str, Any],
) -> str:
    """Return the text of a workload file for a recipe of a release.

    Raises NotImportable if a workload file cannot express the recipe.

    Args:
        release: where the recipe is from.
        source: the recipe.
        rows: what its launch script submits.
        profile: the job that it submits for one of the rows with profiling turned on.
        described: by model size, the tokens per sample and the Hugging Face files, from `describe_sizes`.
    """
    name, sizes = name_workload(release, source), list(dict.fromkeys(row.sizes for row in rows))
    commits = {source.images[row.gpu_types]: source.commits[row.gpu_types] for row in rows}
    common, rules = _rules(rows)
    limits, platform_limits = _time_limits(rows)
    of_types = {
        gpu_type: {
            "gpus_per_node": next(row for row in rows if row.gpu_types == gpu_type).job["executor"][
                "ntasks_per_node"
            ],
            "image": source.images[gpu_type],
            **({"time_limit": platform_limits[gpu_type]} if gpu_type in platform_limits else {}),
        }
        for gpu_type in dict.fromkeys(row.gpu_types for row in rows)
    }
    at = f"NVIDIA/exemplar-performance {release.tag}, {source.folder}"
    pinned = " and ".join(f"{commit[:10]}" for commit in dict.fromkeys(commits.values()))
    started = f"{at}/{source.script}, with scripts/performance of Megatron-Bridge {pinned}"
    for gpu_type, like in {row.gpu_types: row.upstream.like for row in rows}.items():
        if like:
            started += f"; it was asked for {like}, and Megatron-Bridge for {gpu_type}"
    limit = min(limits.values())
    lines = [
        f"{WRITTEN_BY} from {at} and Megatron-Bridge {pinned}:",
        "# the next import replaces it. What the fields mean: docs/reference/workloads.md",
        *_block(
            workload=name,
            title=source.title,
            document=f"{at}/README.md",
            llmb_name=source.name,
            flops_formula="megatron-bridge",
            experiment=f"pretrain_{name.replace('-', '_')}_" + _EXPERIMENT_TEMPLATE,
            defaults={"size": sizes[0], "dtype": rows[0].dtypes},
            steps={
                "max_steps": int(rows[0].words["max_steps"]),
                "window": "35:44",
                "time_limit": {"weak": limit},
            },
            profile=_profile(profile),
            nccl_trace=None,
        ),
        "gpu_types:",
        *(f"  {gpu_type}: {flow(of)}" for gpu_type, of in of_types.items()),
        "performance:",
        f"  sources: {flow({'launch': started})}",
        "  rules:",
        *(f"    - {flow({'source': 'launch', **rule})}" for rule in rules),
        "sizes:",
    ]
    launch: dict[str, Any] = {
        "commits": commits,
        "script": _script(rows),
        "arguments": [*common, _SET_UP],
        **({"dtypes": {"fp8_ss": "fp8_sc"}} if any(row.dtypes == "fp8_ss" for row in rows) else {}),
        "profile": list(_PROFILE),
        **({"files": files} if (files := _files(release, rows)) else {}),
    }
    for number, size in enumerate(sizes):
        of_size = [row for row in rows if row.sizes == size]
        told = {(row.words["model_family_name"], row.words["model_recipe_name"]) for row in of_size}
        if len(told) > 1:
            raise NotImportable(f"size {size} has several recipes: {sorted(told)}")
        [(family, recipe)] = told
        model = {
            "architecture": "megatron_bridge",
            "family": family,
            "recipe": recipe,
            **described[size],
        }
        lines += [f"  {size}:", "    model:", *_block(4, **model)]
        if number:
            lines.append("      launch: *launch")
        else:
            lines += ["      launch: &launch", *_block(6, **launch)]
        if limits[size] != limit:
            steps = {
                "max_steps": int(rows[0].words["max_steps"]),
                "window": "35:44",
                "time_limit": {"weak": limits[size]},
            }
            lines.append(f"    steps: {flow(steps)}")
        lines += ["    configurations:", *(f"      - {flow(rule)}" for rule in _configurations(of_size))]
    return "\n".join(lines) + "\n"


def flow(value: Any) -> str:
    """Format a value as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()


def _block(indent: int = -2, **fields: Any) -> Iterator[str]:
    for name, value in fields.items():
        yield f"{' ' * (indent + 2)}{name}: {flow(value)}"


def _script(rows: Sequence[RecordedRun]) -> str:
    scripts = {str(row.job["script"]).removeprefix("/bridge/").partition("/")[2] for row in rows}
    if len(scripts) > 1:
        raise NotImportable(
            f"its runs start several scripts, and steptime supports only one: {sorted(scripts)}"
        )
    return scripts.pop()


def _files(release: Release, rows: Sequence[RecordedRun]) -> dict[str, str]:
    """Return the files that the release mounts into the container. Raises NotImportable for other mounts."""
    files = {}
    for mount in dict.fromkeys(mount for row in rows for mount in row.job["executor"]["container_mounts"]):
        outside, _, inside = mount.partition(":")
        if outside.startswith("/llmb/llmb_repo/"):
            lines = release.text(outside.removeprefix("/llmb/llmb_repo/")).splitlines()
            files[inside] = "\n".join(line for line in lines if not line.startswith("#")).strip() + "\n"
        elif inside and inside != outside:
            raise NotImportable(
                f"it replaces the image's {inside} by a mount, which steptime does not support"
            )
    return files


def _profile(job: Mapping[str, Any]) -> dict[str, Any] | None:
    words = [part for word in job.get("told", ()) for part in word.split("=", 1)]
    told = {name: value for name, value in itertools.pairwise(words) if name.startswith("--")}
    if "--profiling_start_step" not in told:
        return None
    first, last = int(told["--profiling_start_step"]), int(told["--profiling_stop_step"])
    trace = told.get("--nsys_trace", "cuda-sw,nvtx").split(",")
    options = ["--cuda-graph-trace=node", "--cuda-event-trace=false"]
    options += told["--nsys_extra_args"].split(",") if "--nsys_extra_args" in told else []
    nsight = {"trace": trace, "options": options}
    return {"first_step": first, "last_step": last, "max_steps": last, "ranks": [*range(8)], "nsight": nsight}


def _time_limits(rows: Sequence[RecordedRun]) -> tuple[dict[str, str], dict[str, str]]:
    """Return time limits by model size, and exceptions by GPU type.

    Raises NotImportable if the limits depend on anything else.
    """
    by_size, by_type = defaultdict(set), defaultdict(set)
    for row in rows:
        by_size[row.sizes].add(row.job["executor"]["time"])
        by_type[row.gpu_types].add(row.job["executor"]["time"])
    if all(len(limits) == 1 for limits in by_size.values()):
        return {size: next(iter(limits)) for size, limits in by_size.items()}, {}
    if any(len(limits) > 1 for limits in by_type.values()):
        raise NotImportable("its time limits depend on more than the size or the type of GPU")
    of_types = {gpu_type: next(iter(limits)) for gpu_type, limits in by_type.items()}
    least = min(of_types.values())
    return dict.fromkeys(by_size, least), {
        gpu_type: limit for gpu_type, limit in of_types.items() if limit != least
    }


def _configurations(rows: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield rules that give the runs of one model size their parallelism and batch sizes."""
    groups: dict[str, list[tuple[RecordedRun, dict[str, Any]]]] = defaultdict(list)
    for row in rows:
        degrees, micro, whole = row.spread
        ratio = whole / row.gpus
        batch = {"per_gpu": int(ratio) if ratio == int(ratio) else ratio}
        rule = {"parallelism": degrees, "micro_batch_size": micro, "global_batch_size": {"weak": batch}}
        groups[flow(rule)].append((row, rule))
    for members in groups.values():
        runs = [(row.gpu_types, row.dtypes, row.gpus) for row, _ in members]
        for gpu_types, dtypes, gpus in _boxes(runs):
            yield {"gpu_types": gpu_types, "dtypes": dtypes, "gpus": sorted(gpus), **members[0][1]}


def _boxes(runs: Sequence[tuple[str, str, int]]) -> Iterator[tuple[list[str], list[str], list[int]]]:
    """Group runs (GPU type, dtype, GPU count) into lists of GPU types, dtypes and GPU counts.

    A yielded triple of lists means all their combinations; each run is in exactly one triple.
    """
    scales: dict[tuple[str, str], tuple[int, ...]] = {}
    for gpu_type, dtype, gpus in runs:
        scales[gpu_type, dtype] = (*scales.get((gpu_type, dtype), ()), gpus)
    dtypes: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (gpu_type, dtype), counts in scales.items():
        dtypes[gpu_type, counts].append(dtype)
    types: dict[tuple[tuple[str, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for (gpu_type, counts), of_dtypes in dtypes.items():
        types[tuple(of_dtypes), counts].append(gpu_type)
    for (dtypes_of_box, counts), gpu_types in types.items():
        yield gpu_types, [*dtypes_of_box], [*counts]


Setting = tuple[str, ...]


def _rules(rows: Sequence[RecordedRun]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return fixed arguments (without a value or with a placeholder), and rules for all other settings.

    Raises NotImportable if rows differ in a fixed argument, or bind their ranks in an unknown way.
    """
    settings = {row: dict(_settings(row)) for row in rows}
    holders: dict[tuple[Setting, Any], list[RecordedRun]] = defaultdict(list)
    for row, of_row in settings.items():
        for item in of_row.items():
            holders[item].append(row)
    common: list[str] = []
    rules: dict[tuple[bool, str], dict[str, Any]] = defaultdict(dict)
    for ((kind, *name), value), held in holders.items():
        if kind == "words" and len(held) == len(rows):
            common.append(value)
            continue
        if kind == "words":
            raise NotImportable(
                f"only some of its runs have the argument {value}, and a workload file gives arguments to all"
            )
        for conditions in _conditions(held, rows):
            binds = kind in _OF_BINDING
            target = rules[binds, flow(conditions)]
            target.update(conditions, **({"cluster_kinds": ["slurm"]} if binds else {}))
            if name:
                target.setdefault(kind, {})[name[0]] = value
            else:
                target[kind] = value
    ordered = sorted(rules.values(), key=lambda rule: [name in rule for name in _DIMENSIONS])
    return common, [{name: rule[name] for name in sorted(rule, key=_ORDER.index)} for rule in ordered]


def _settings(row: RecordedRun) -> Iterator[tuple[Setting, Any]]:
    for words in row.job["arguments"]:
        if words[0] in _NOT_OURS:
            continue
        if len(words) == 1 or words[0] in _WORDS or words[0] in ("--account", "--partition"):
            value = "=".join((words[0], *(_WORDS.get(words[0], word) for word in words[1:])))
            yield ("words", words[0]), value
        else:
            yield ("arguments", words[0].removeprefix("--")), words[1]
    for name, value in row.environment.items():
        yield ("environment", name), value
    bound = _BINDING.fullmatch(row.job["executor"]["launcher"]["template_vars"]["pre_cmds"].split(" ; ")[-1])
    if bound is None:
        raise NotImportable("its ranks are bound in a way that steptime does not know")
    yield ("ranks_per_numa_node",), int(bound[1])
    if bound[2]:
        yield ("priority_cores",), True


def _conditions(held: Sequence[RecordedRun], rows: Sequence[RecordedRun]) -> list[dict[str, list[Any]]]:
    """Return conditions that select exactly the rows `held` among `rows`, as few as possible.

    Each item is a set of conditions that must all be met. There are several items if one set cannot select
    these rows.
    """
    wanted = set(held)
    for number in range(len(_DIMENSIONS) + 1):
        for names in itertools.combinations(_DIMENSIONS, number):
            values = {name: list(dict.fromkeys(getattr(row, name) for row in held)) for name in names}
            if all(
                (row in wanted) == all(getattr(row, name) in values[name] for name in names) for row in rows
            ):
                return [values | ({"gpus": sorted(values["gpus"])} if "gpus" in values else {})]
    splits = []
    for name in _DIMENSIONS:
        parts: dict[Any, list[RecordedRun]] = defaultdict(list)
        for row in held:
            parts[getattr(row, name)].append(row)
        if len(parts) == 1:
            continue
        merged: dict[str, dict[str, list[Any]]] = {}
        for value, part in parts.items():
            for condition in _conditions(part, [row for row in rows if getattr(row, name) == value]):
                merged.setdefault(flow(condition), {**condition, name: []})[name].append(value)
        splits.append(list(merged.values()))
    return min(splits, key=len)


def recipe_questions(rows: Sequence[RecordedRun]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the question to `recorder/describe.py` for each model size and GPU type."""
    return {
        (row.sizes, row.gpu_types): {
            "family": row.words["model_family_name"],
            "recipe": row.words["model_recipe_name"],
            "gpu_type": row.gpu_types,
            "dtype": row.words["compute_dtype"],
            "variant": row.words.get("config_variant", "v2"),
            "gpus": row.gpus,
        }
        for row in rows
    }


def describe_sizes(
    source: UpstreamRecipe, rows: Sequence[RecordedRun], sandbox: Sandbox
) -> dict[str, dict[str, Any]]:
    """Return the tokens per sample and the Hugging Face files of each size, from Megatron-Bridge's recipes.

    Raises NotImportable if recipes do not state them, or if the tokens of a size differ by GPU type.
    """
    answers: dict[str, dict[str, Any]] = {}
    questions = recipe_questions(rows)
    for commit in dict.fromkeys(source.commits.values()):
        of_commit = {key: question for key, question in questions.items() if source.commits[key[1]] == commit}
        try:
            of_sizes = sandbox.answers("describe.py", list(of_commit.values()), f"/bridge/{commit}")
        except SystemFailure as error:
            reason = f"the recipes of Megatron-Bridge {commit[:10]} do not say what they train on: {error}"
            raise NotImportable(reason) from error
        for (size, gpu_type), answer in zip(of_commit, of_sizes, strict=True):
            if answer["seq_length"] is None:
                raise NotImportable(
                    f"its recipe does not state the tokens per sample of {size} on {gpu_type}"
                )
            if answers.setdefault(size, answer)["seq_length"] != answer["seq_length"]:
                raise NotImportable(
                    f"the tokens per sample of {size} differ on {gpu_type}, which steptime does not support"
                )
            answers[size]["hub"] |= answer["hub"]
    return {size: {name: answers[size][name] for name in ("seq_length", "hub")} for size in answers}


def import_workload(
    release: Release, source: UpstreamRecipe, sandbox: Sandbox
) -> tuple[str, list[RecordedRun]]:
    """Return the text of a recipe's workload file, and its runs.

    Raises NotImportable if the recipe cannot be imported.
    """
    rows = recorded_rows(source, record_jobs(source, sandbox))
    for commit in dict.fromkeys(source.commits[row.gpu_types] for row in rows):
        if not names_batch(commit, sandbox):
            raise NotImportable(
                f"the global batch size of its runs is unknown: experiment names of Megatron-Bridge "
                f"{commit[:10]} have the one for the recipe's default number of GPUs"
            )
    with_one_run = replace(source, runs=source.runs[:1])
    [profile] = record_jobs(with_one_run, sandbox, "profile").values()
    return workload_text(release, source, rows, profile, describe_sizes(source, rows, sandbox)), rows


def refusals(source: UpstreamRecipe, rows: Sequence[RecordedRun], text: str) -> Iterator[str]:
    """Yield a phrase for each part of a recipe that its workload file (`text`) leaves out."""
    for repository in source.downloads:
        if repository not in text:
            yield f"download {repository}, which none of its runs asks for"
    launched = {row.upstream for row in rows}
    if refused := [str(run) for run in source.runs if run not in launched]:
        yield f"runs that upstream's scripts refuse: {', '.join(refused)}"
    if source.proxies:
        yield f"{source.proxies} runs of shrunken models (proxy_scales)"
    dropped = {name: value for row in rows for name, value in row.job["executor"]["env_vars"].items()}
    for name in sorted(dropped.keys() - {name for row in rows for name in row.environment}):
        yield f"variable {name}, {'a secret' if name == 'HF_TOKEN' else 'a folder of its installation'}"
