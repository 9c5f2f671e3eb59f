"""Writes down what upstream's launch scripts accept and what its recipes have, from a clone of it.

    python tests/data/megatron_bridge/record.py path/to/Megatron-Bridge

Makes `parsers.json`, the arguments of each release's parser, and `configurations.json`, the configurations of
the recipes that our workload files start, with the variables of their jobs on Slurm. Of upstream the plain
dataclasses of the configurations are executed, and what sets the variables, with stand-ins for NeMo-Run.
"""

import ast
import dataclasses
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

TAGS = {"25.11": "v0.2.2", "26.02": "v0.3.0", "26.04": "v0.4.2", "26.06": "v0.5.1", "26.08": "v0.6.0"}
PARSER = "scripts/performance/argument_parser.py"
CONFIGURATIONS = {
    "26.02": ("gpt_oss/gpt_oss", "qwen/qwen3"),
    "26.04": ("nemotronh/nemotron_3", "deepseek/deepseek"),
}
"""By release: the family that a launch is told, and the file of its configurations."""
KEPT = re.compile(
    r"(?P<recipe>GPT_OSS_120B|QWEN3_30B_A3B|QWEN3_235B_A22B|NEMOTRON_3_(?:NANO|SUPER)|DEEPSEEK_V3)"
    r"_PRETRAIN_CONFIG_(?P<gpu>[A-Z]+[0-9]+)_(?P<dtype>\w+)_(?P<variant>V\d)"
)
FIELDS = (
    *("num_gpus", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("micro_batch_size", "global_batch_size"),
)
"""What documents print of a configuration."""
HERE = Path(__file__).parent


def shown(clone: str, tag: str, path: str) -> str:
    """A file at a tag."""
    return git(clone, "show", f"{tag}:{path}")


def git(clone: str, *arguments: str) -> str:
    command = ("git", "-C", clone, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def arguments_of(source: str) -> dict[str, dict[str, Any]]:
    """By long name: what `add_argument` was told, as far as it is plain data."""
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


def configurations_of(clone: str, tag: str, files: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """By upstream's name, without what is left at its default."""
    utils = ast.parse(shown(clone, tag, "scripts/performance/utils/utils.py"))
    base = next(node for node in utils.body if getattr(node, "name", "") == "WorkloadBaseConfig")
    module: dict[str, Any] = {}
    code = ast.unparse(ast.Module([base], []))
    exec(f"from dataclasses import dataclass\nfrom typing import *\n{code}", module)  # noqa: S102
    stand_in = types.ModuleType("utils.utils")
    stand_in.WorkloadBaseConfig = module["WorkloadBaseConfig"]
    sys.modules |= {"utils": types.ModuleType("utils"), "utils.utils": stand_in}
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        names: dict[str, Any] = {}
        exec(shown(clone, tag, f"scripts/performance/configs/{file}_workload_base_configs.py"), names)  # noqa: S102
        for name, value in names.items():
            if (known := KEPT.fullmatch(name)) and dataclasses.is_dataclass(value):
                told = dataclasses.asdict(value)
                launched = {key: text.lower() for key, text in known.groupdict().items()}
                found[name] = {key: told[key] for key in FIELDS if told[key] is not None} | {
                    "environment": environment_of(clone, tag, file.partition("/")[0], launched, value)
                }
    return found


def environment_of(
    clone: str, tag: str, family: str, launched: dict[str, str], configuration: Any
) -> dict[str, str]:
    """The variables of a job on Slurm: those of upstream's executor, then what its plugin makes of them."""

    class Anything(types.ModuleType):
        """NeMo-Run, of which nothing but names is needed."""

        __path__ = ()

        def __getattr__(self, name: str) -> type:
            return type(name, (), {"__init__": lambda self, *_, **told: self.__dict__.update(told)})

    nemo_run = ("nemo_run", "nemo_run.config", "nemo_run.core", "nemo_run.core.execution")
    config = Anything("nemo_run.config")
    config.get_nemorun_home = str
    sys.modules |= {name: Anything(name) for name in (*nemo_run, "nemo_run.core.execution.launcher")}
    sys.modules["nemo_run.config"] = config
    sys.modules["utils.utils"].get_workload_base_config = lambda *_, **__: configuration
    executors, plugins = ({"__name__": name, "__file__": __file__} for name in ("executors", "plugins"))
    exec(shown(clone, tag, "scripts/performance/utils/executors.py"), executors)  # noqa: S102
    exec(shown(clone, tag, "scripts/performance/perf_plugins.py"), plugins)  # noqa: S102
    of_slurm = {"account": "", "partition": "", "log_dir": "", "nodes": 1, "num_gpus_per_node": 8}
    job = executors["slurm_executor"](launched["gpu"], **of_slurm)
    task = types.SimpleNamespace(args=[])
    plugins["Script"] = types.SimpleNamespace
    plugins["PerfEnvPlugin"](
        **{"model_family_name": family, "model_recipe_name": launched["recipe"], "gpu": launched["gpu"]},
        **{"compute_dtype": launched["dtype"], "train_task": "pretrain"},
        **{"config_variant": launched["variant"], "moe_a2a_overlap": None},  # the configuration's
    ).setup(task, job)
    return dict(sorted(job.env_vars.items()))


def main(clone: str) -> None:
    parsers = {
        release: {
            "tag": tag,
            "commit": git(clone, "rev-list", "-n1", tag).strip(),
            "file": PARSER,
            "arguments": arguments_of(shown(clone, tag, PARSER)),
        }
        for release, tag in TAGS.items()
    }
    configurations = {
        release: configurations_of(clone, TAGS[release], files) for release, files in CONFIGURATIONS.items()
    }
    (HERE / "parsers.json").write_text(_written({one: parsers[one]["arguments"] for one in parsers}, parsers))
    (HERE / "configurations.json").write_text(_written(configurations, {}))


def _written(of_releases: dict[str, dict[str, Any]], heads: dict[str, dict[str, Any]]) -> str:
    """As JSON with a line for each argument or configuration."""
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
    main(sys.argv[1])
