"""Writes down what upstream's launch scripts accept and what its recipes have, from a clone of it.

    python recorders/megatron_bridge/record.py path/to/Megatron-Bridge path/to/dgxc-benchmarking

For each release of Megatron-Bridge whose recipes are shipped:

- `parsers.json`: the arguments of its parser;
- `recipes.json`: the recipes of language models that it pre-trains, with the tokens of a sample and the
  parameters that upstream states.

For each workload that starts recipes by name:

- `configurations.json`: the configurations of its recipes with what their jobs on Slurm are given (variables,
  options of sbatch and srun, numactl), at the tag or commit that the sources of its rules name;
- `documents.json`: the rows that its document prints, at the tag that its file names.

Upstream's own code is run, with stand-ins for NeMo-Run and for everything that trains (`upstream.py`).
"""

import ast
import dataclasses
import importlib
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from documents import README, rows_of
from launches import launched
from upstream import LOADED, git, imported, shown

HERE = Path(__file__).parents[2] / "tests/data/megatron_bridge"
CONFIG = HERE.parents[2] / "config"
PARSER = "scripts/performance/argument_parser.py"
RELEASES = {"25.11": "v0.2.2", "26.02": "v0.3.0", "26.04": "v0.4.2", "26.06": "v0.5.1", "26.08": "v0.6.0"}
"""Tag of Megatron-Bridge by release of NeMo's image."""
OTHERS = ("qwen_vl", "wan")
"""Families of models that also take images: they need arguments that steptime does not pass."""
FIELDS = {
    "model": (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size"),
        "expert_tensor_parallel_size",
    ),
    "train": ("micro_batch_size", "global_batch_size"),
}
"""Fields of a configuration that documents print, by the part of upstream's configuration."""
OF_SLURM = (
    *("nodes", "ntasks_per_node", "segment", "mem", "exclusive", "gres", "network", "srun_args"),
    "additional_parameters",
)
"""Fields of NeMo-Run's executor that become options of sbatch or srun, apart from accounts and limits."""
GPU_TYPES = "h100|b200|b300|gb200|gb300"
DTYPES = "bf16|fp8_?cs|fp8_?mx|fp8_?sc|nvfp4"
STATED = {
    **dict.fromkeys(
        ("deepseek_v3", "v3"),
        ("v0.6.0", "docs/models/deepseek/deepseek-v3.md", r"(\d+B) parameters \((\d+B) activated"),
    ),
    "kimi_k2": ("v0.6.0", "src/megatron/bridge/recipes/kimi/h100/kimi_k2.py", r"Kimi-K2 \((1T)\)()"),
    "nemotron_3_nano": (
        *("v0.6.0", "examples/models/nemotron/nemotron_3/nano/slurm_pretrain.sh"),
        r"a (30B) parameter model with A(3B)",
    ),
}
"""Where upstream states the number of parameters, for recipes whose names do not."""


@dataclasses.dataclass
class Recipe:
    """One of upstream's configurations: how it is selected, and its content."""

    key: str
    """Upstream's name of the configuration."""
    family: str
    recipe: str
    gpu_type: str
    dtype: str
    variant: str | None
    gpus: int
    made: Any
    """The whole configuration."""
    loaded: set[str]
    """Repositories of the Hugging Face hub that it loaded model configurations from."""


def arguments_of(source: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of `add_argument` by long name, as far as they are plain data."""
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.List | ast.Dict)
    }
    found = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"):
            continue
        names = [ast.literal_eval(name) for name in node.args]
        told = {
            word.arg: word.value
            for word in node.keywords
            if word.arg in ("required", "choices", "nargs", "action")
        }
        kind = next((ast.unparse(word.value) for word in node.keywords if word.arg == "type"), None)
        found[names[-1]] = {
            **{name: _plain(value, constants) for name, value in told.items()},
            **({"type": kind} if kind else {}),
        }
    return dict(sorted(found.items()))


def _plain(value: ast.expr, constants: dict[str, Any]) -> Any:
    if isinstance(value, ast.Call):  # NUM_GPUS_PER_NODE_MAP.keys()
        return list(constants[value.func.value.id])
    return ast.literal_eval(value)


def recipes_of(clone: str, tag: str) -> Iterator[Recipe]:
    """Return every configuration of a release, which has one of three layouts."""
    files = git(clone, "ls-tree", "-r", "--name-only", tag, "scripts/performance", "src/megatron/bridge")
    flat = "src/megatron/bridge/perf_recipes/__init__.py" in files
    root = "src/megatron/bridge/perf_recipes" if flat else "scripts/performance/configs"
    for family in sorted(set(re.findall(rf"^{root}/(\w+)/", files, re.MULTILINE)) - {*OTHERS}):
        if flat:
            yield from _of_functions(family)
        elif f"{root}/{family}/workload_base_configs.py" in files:
            yield from _of_sizes(family)
        else:
            yield from _of_recipes(family)


def _of_sizes(family: str) -> Iterator[Recipe]:
    """Return the configurations of a release that is asked for a model and its size."""
    bases = importlib.import_module(f"configs.{family}.workload_base_configs")
    builders = importlib.import_module(f"configs.{family}.{family}_llm_pretrain")
    for key, base in vars(bases).items():
        named = re.fullmatch(rf"{family}_(\w+?)_({GPU_TYPES})_({DTYPES})_base_config", key.lower())
        builder = named and getattr(builders, f"{family}_{named[1]}_{named[2]}_config", None)
        if named and builder:
            made, loaded = _built(builder, precision=named[3])
            yield Recipe(key, family, named[1], named[2], named[3], None, base.num_gpus, made, loaded)


def _of_recipes(family: str) -> Iterator[Recipe]:
    """Return the configurations of a release that is asked for a recipe and a variant."""
    module = importlib.import_module(f"configs.{family}")
    pattern = rf"(\w+)_pretrain_config_({GPU_TYPES})_({DTYPES})(?:_(\w+))?"
    for key, base in vars(module).items():
        named = re.fullmatch(pattern, key.lower())
        builder = named and getattr(module, f"{named[1]}_pretrain_config_{named[2]}", None)
        if named and builder and dataclasses.is_dataclass(base):
            made, loaded = _built(builder, precision=named[3], config_variant=named[4] or "v1")
            yield Recipe(key, family, named[1], named[2], named[3], named[4], base.num_gpus, made, loaded)


def _of_functions(family: str) -> Iterator[Recipe]:
    """Return the configurations of a release that has a function for each."""
    pattern = re.compile(rf"(\w+?)_pretrain_(\d+)gpu_({GPU_TYPES})_({DTYPES})(?:_(\w+))?_config")
    for key, function in vars(importlib.import_module(f"megatron.bridge.perf_recipes.{family}")).items():
        if named := pattern.fullmatch(key):
            dtype = re.sub("^fp8", "fp8_", named[4])
            made, loaded = _built(function)
            yield Recipe(key, family, named[1], named[3], dtype, named[5], int(named[2]), made, loaded)


def _built(builder: Callable[..., Any], **told: Any) -> tuple[Any, set[str]]:
    """Return a configuration, and the repositories of the hub that it loaded model configurations from."""
    LOADED.clear()
    return builder(**told), set(LOADED)


def described(clone: str, recipes: list[Recipe]) -> dict[str, Any]:
    """One recipe, of all its configurations: the tokens of a sample, the parameters that are stated, and the
    repositories of the Hugging Face hub from which each rank loads a model's configuration or a tokenizer."""
    samples, models, configurations, tokenizers = set(), set(), set(), set()
    for recipe in recipes:
        model, data = recipe.made.model, recipe.made.dataset
        lengths = [
            model.seq_length,
            data.sequence_length,
            data.seq_length,
        ]
        samples.add(next(length for length in lengths if isinstance(length, int)))
        models |= {name for name in (model.sizes_of, model.hf_model_id) if isinstance(name, str)}
        configurations |= recipe.loaded
        if recipe.made.tokenizer.tokenizer_type == "HuggingFaceTokenizer":
            tokenizers.add(recipe.made.tokenizer.tokenizer_model)
    return {
        "seq_length": sorted(samples),
        "model": sorted(models),
        "configuration": sorted(configurations),
        "tokenizer": sorted(tokenizers),
        "stated": _stated(clone, recipes[0].recipe, sorted(models)),
    }


def _stated(clone: str, recipe: str, models: list[str]) -> str | None:
    """As a size's name has it: `30b-a3b`; in its own name, in that of the model that it has the sizes of,
    or in a document of upstream's."""
    if recipe in STATED:
        tag, path, pattern = STATED[recipe]
        found = re.search(pattern, shown(clone, tag, path))
        assert found, f"{path} does not state the parameters of {recipe}"
        total, active = (text.lower().replace("1t", "1000b") for text in found.groups())
        return total + (f"-a{active}" if active else "")
    for name in (recipe, *models):
        if found := re.search(r"(?:^|[_-])(\d+b)(?:[_-](a\d+b))?(?:[_-]|$)", name.lower()):
            return "-".join(filter(None, found.groups()))
    return None


def configuration_of(recipe: Recipe) -> dict[str, Any]:
    """Return what documents print of a recipe's configuration, without values that are None."""
    fields = {
        name: getattr(getattr(recipe.made, part), name) for part, names in FIELDS.items() for name in names
    }
    set_ones = {name: value for name, value in fields.items() if isinstance(value, int)}
    return {"num_gpus": recipe.gpus, **set_ones}


def job_of(
    clone: str, tag: str, recipe: Recipe, *, gpus: int, gpus_per_node: int, **told: Any
) -> dict[str, Any]:
    """What upstream sets for a job on Slurm: its variables, and what it asks of sbatch, srun and numactl.

    The variables are those of the executor with the changes of its plugin. The newest releases have no such
    plugin: their script sets a recipe's variables by itself. `told` is for the executor.
    """
    for module in ("utils.executors", "perf_plugins"):
        sys.modules.pop(module, None)  # a launch leaves its variables in them
    executors = importlib.import_module("utils.executors")
    plugins = importlib.import_module("perf_plugins")
    executors.get_nemorun_home = str
    if not binds_cores(clone, tag, recipe):
        told["enable_pct_binding"] = False
    job = executors.slurm_executor(
        recipe.gpu_type,
        account="",
        partition="",
        log_dir="",
        nodes=-(gpus // -gpus_per_node),
        num_gpus_per_node=gpus_per_node,
        **told,
    )
    if hasattr(plugins, "PerfEnvPlugin"):
        plugins.Script = types.SimpleNamespace
        told = {
            **{"model_family_name": recipe.family, "model_recipe_name": recipe.recipe},
            **{"model_name": recipe.family, "model_size": recipe.recipe, "gpu": recipe.gpu_type},
            **{"compute_dtype": recipe.dtype, "train_task": "pretrain", "task": "pretrain", "domain": "llm"},
            **{"config_variant": recipe.variant or "v1", "use_tokendrop": False},
            # Of these the configuration's.
            **{"moe_a2a_overlap": None, "tp_size": None, "cp_size": None, "pp_size": None},
        }
        fields = {field.name for field in dataclasses.fields(plugins.PerfEnvPlugin)}
        plugin = plugins.PerfEnvPlugin(**{name: told[name] for name in told if name in fields})
        plugin.setup(types.SimpleNamespace(args=[]), job)
    of_the_launcher = ("HF_TOKEN", "NEMORUN_HOME")
    given = vars(job)
    commands = job.launcher.template_vars["pre_cmds"].split(" ; ")
    return {
        "environment": {
            name: value for name, value in sorted(job.env_vars.items()) if name not in of_the_launcher
        },
        "slurm": {name: given[name] for name in OF_SLURM if given.get(name) is not None},
        "numactl": next(command for command in commands if command.startswith("numactl ")),
    }


def binds_cores(clone: str, tag: str, recipe: Recipe) -> bool:
    """Return whether setup_experiment.py leaves the binding to cores on, by its own condition."""
    words = {
        **{"model_family_name": recipe.family, "model_recipe_name": recipe.recipe, "gpu": recipe.gpu_type},
        **{"compute_dtype": recipe.dtype, "config_variant": recipe.variant or "v1", "task": "pretrain"},
    }
    tree = ast.parse(shown(clone, tag, "scripts/performance/setup_experiment.py"))
    conditions = [
        compile(ast.Expression(node.test), tag, "eval")
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.body[0]) == "enable_pct_binding = False"
    ]
    return not any(eval(condition, {}, words) for condition in conditions)  # noqa: S307


def launches_of(
    bridge: str, clone: str, workload: dict[str, Any], rows: list[dict[str, str]], recipes: list[Recipe]
) -> dict[str, dict[str, Any]]:
    """By size, GPU type, dtype and GPUs: what the launch.sh beside a document starts for each of its rows.

    Its configuration is upstream's, at its scale and with what launch.sh says otherwise.
    """
    named, tag = README.fullmatch(workload["document"]), launched_at(workload)
    cells = [
        (row, system, precision)
        for row in rows
        for system in row["system"].split(" and ")
        for precision in row["precision"].split("/")
    ]
    found = {}
    for printed, system, precision in cells:
        size = printed["model"].rpartition(" ")[2].lower()
        asked = {"GPU_TYPE": system, "DTYPE": precision, "JOB_TOTAL_GPUS": printed["gpus"]}
        arguments, exported = launched(
            clone,
            named["tag"],
            f"{named['path'].rpartition('/')[0]}/launch.sh",
            asked | ({"MODEL_SIZE": size} if size else {}),
        )
        recipe = next(
            one
            for one in recipes
            if one.recipe == arguments.get("model_recipe_name", arguments.get("model_size"))
            and (one.gpu_type, one.dtype) == (arguments["gpu"], arguments["compute_dtype"])
        )
        own = configuration_of(recipe)
        gpus = int(arguments["num_gpus"])
        own["global_batch_size"] = own["global_batch_size"] * gpus // own["num_gpus"]
        otherwise = {
            name: int(arguments[name]) for names in FIELDS.values() for name in names if name in arguments
        }
        told = {"hf_token": "none"} if "hf_token" in arguments else {}
        told |= {"offline": True} if "offline" in arguments else {}
        if "enable_pct_binding" in arguments:
            told["enable_pct_binding"] = arguments["enable_pct_binding"].lower() == "true"
        per_node = gpus_per_node(workload, recipe)
        job = job_of(bridge, tag, recipe, gpus=gpus, gpus_per_node=per_node, **told)
        job["environment"] |= exported
        found[f"{recipe.recipe} {recipe.gpu_type} {recipe.dtype} {gpus}"] = (
            own
            | otherwise
            | job
            | {
                "num_gpus": gpus,
                "arguments": {
                    name: arguments[name] for name in sorted(arguments) if name.startswith("cuda_graph")
                },
                "time_limit": arguments["time_limit"],
            }
        )
    return found


def workloads() -> Iterator[dict[str, Any]]:
    """Return the content of every handwritten workload file."""
    for path in sorted((CONFIG / "workloads").glob("*.yaml")):
        workload = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not workload["document"].startswith("NVIDIA/exemplar-performance "):
            yield workload


def named_recipes(workload: dict[str, Any]) -> set[tuple[str, str]]:
    """Return family and name of the recipes that a workload starts by name."""
    models = [size["model"] for size in workload["sizes"].values()]
    return {(one["family"], one["recipe"]) for one in models if one["architecture"] == "megatron_bridge"}


def gpus_per_node(workload: dict[str, Any], recipe: Recipe) -> int:
    """Return the GPUs per node that users pass to upstream's script as --gpus_per_node; its default is 8."""
    return int(workload["gpu_types"].get(recipe.gpu_type, {"gpus_per_node": 8})["gpus_per_node"])


def launched_at(workload: dict[str, Any]) -> str:
    """Return the tag or commit of the launch code that a workload's rules come from."""
    sources = workload["performance"]["sources"].values()
    found = (re.match(r"NVIDIA-NeMo/Megatron-Bridge (\S+), ", text) for text in sources)
    [tag] = {one[1] for one in found if one is not None}
    return tag


def main(bridge: str, benchmarking: str) -> None:
    parsers, recipes, configurations, documents = {}, {}, {}, {}
    for release, tag in RELEASES.items():
        parsers[release] = {
            "tag": tag,
            "commit": git(bridge, "rev-list", "-n1", tag).strip(),
            "file": PARSER,
            "arguments": arguments_of(shown(bridge, tag, PARSER)),
        }
        with imported(bridge, tag):
            found = list(recipes_of(bridge, tag))
            names = sorted({(one.family, one.recipe) for one in found})
            recipes[release] = {
                f"{family} {recipe}": described(
                    bridge, [one for one in found if (one.family, one.recipe) == (family, recipe)]
                )
                for family, recipe in names
            }
    for workload in workloads():
        if started := named_recipes(workload):
            name, tag = workload["workload"], launched_at(workload)
            rows = rows_of(bridge, benchmarking, workload["document"])
            documents[name] = {_cell(row): row for row in rows}
            with imported(bridge, tag):
                found = [one for one in recipes_of(bridge, tag) if (one.family, one.recipe) in started]
                if README.fullmatch(workload["document"]):
                    configurations[name] = launches_of(bridge, benchmarking, workload, rows, found)
                else:
                    configurations[name] = {
                        one.key: configuration_of(one)
                        | job_of(
                            *(bridge, tag, one),
                            gpus=one.gpus,
                            gpus_per_node=gpus_per_node(workload, one),
                        )
                        for one in found
                    }
    (HERE / "parsers.json").write_text(_written({one: parsers[one]["arguments"] for one in parsers}, parsers))
    (HERE / "recipes.json").write_text(_written(recipes, {}))
    (HERE / "configurations.json").write_text(_written(configurations, {}))
    (HERE / "documents.json").write_text(_written(documents, {}))


def _cell(row: dict[str, str]) -> str:
    return " ".join(row[name] for name in ("model", "system", "gpus", "precision", "gbs")).strip()


def _written(of_releases: dict[str, dict[str, Any]], heads: dict[str, dict[str, Any]]) -> str:
    """Return JSON with a line for each argument, recipe or configuration."""
    releases = []
    for release, entries in of_releases.items():
        lines = [f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        head = [
            f"   {json.dumps(name)}: {json.dumps(one)},\n"
            for name, one in heads.get(release, {}).items()
            if name != "arguments"
        ]
        opened, closed = ('   "arguments": {\n', "\n   }") if heads else ("", "")
        releases.append(
            f" {json.dumps(release)}: {{\n{''.join(head)}{opened}" + ",\n".join(lines) + f"{closed}\n }}"
        )
    return "{\n" + ",\n".join(releases) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
