"""Writes down what upstream's own launch code submits, for tests.

    python recorders/launches.py exemplar path/to/exemplar-performance path/to/Megatron-Bridge TAG
    python recorders/launches.py documents path/to/dgxc-benchmarking path/to/Megatron-Bridge

`exemplar` records the runs of a release that `steptime recipes import` imports (tests/data/exemplar).
`documents` records for each workload that a person wrote for recipes of Megatron-Bridge
(tests/data/megatron_bridge):

- `launches.json`: what upstream submits for each row, and what its recipe has;
- `documents.json`: the rows that the document prints, at the tag that the workload names;
- `parsers.json`: for each release, the arguments of upstream's parser.

Upstream's code runs in the sandbox of `steptime recipes import`. Everything stands as upstream says it, row
by row, beside what is common to the rows of a workload.
"""

import ast
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steptime.recipes.importing.release import (
    BRIDGE_FOLDERS,
    Sandbox,
    launch_question,
    read_release,
    unpack_commit,
    unpack_pinned,
)
from steptime.recipes.importing.workload import WRITTEN_BY, NotImportable, import_workload, name_workload
from steptime.recipes.models import NamedRecipe, Recipe
from steptime.recipes.workload_file import Workload
from steptime.recipes.workloads import list_workloads, load_workload

sys.path.insert(0, str(Path(__file__).parent))

from documents import README, git, rows_of, text_at

DATA = Path(__file__).parents[1] / "tests/data"
WORKLOADS = Path(__file__).parents[1] / "config/workloads"
RELEASES = {"25.11": "v0.2.2", "26.02": "v0.3.0", "26.04": "v0.4.2", "26.06": "v0.5.1", "26.08": "v0.6.0"}
"""Tag of Megatron-Bridge by release of NeMo's image."""
PARSER = "scripts/performance/argument_parser.py"
SUBMIT = """
cd "$LLMB_INSTALL/workloads/$WORKLOAD/Megatron-Bridge"
python3 scripts/performance/setup_experiment.py $ARGUMENTS
"""
"""The launch script of a document that has none: the rows are started by upstream's script directly."""
OF_SLURM = (
    "nodes",
    "ntasks_per_node",
    "segment",
    "mem",
    "exclusive",
    "gres",
    "network",
    "additional_parameters",
)
OF_INSTALLATION = ("HF_TOKEN", "NEMO_HOME", "NEMORUN_HOME")
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


class Sources(NamedTuple):
    """Git repositories of upstream, and the sandbox that runs their code."""

    benchmarking: Path
    bridge: Path
    sandbox: Sandbox


def flat(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that a job passes to ranks, sbatch, srun and numactl, as one flat mapping."""
    executor, exported = job["executor"], job["exported"]
    arguments = {f"argument {words[0]}": words[1:] for words in job["arguments"]}
    variables = {name: value for name, value in exported.items() if name.startswith("NCCL_")}
    variables |= executor["env_vars"]
    commands = executor["launcher"]["template_vars"]["pre_cmds"].split(" ; ")
    return {
        **arguments,
        **{f"variable {name}": variables[name] for name in sorted(variables.keys() - {*OF_INSTALLATION})},
        **{f"slurm {name}": executor[name] for name in OF_SLURM if executor.get(name) is not None},
        "slurm srun_args": executor["srun_args"],
        "time": executor["time"],
        "numactl": next(command for command in commands if command.startswith("numactl ")),
        "image": executor["container_image"].rpartition("/")[2],
        "experiment": job["experiment"],
    }


def condensed(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return JSON: what all rows share, what rows of each GPU type share, and a line per row for the rest."""
    common = _shared(rows.values())
    parts = []
    for gpu_type in dict.fromkeys(key.split()[1] for key in rows):
        of_type = {key: row for key, row in rows.items() if key.split()[1] == gpu_type}
        shared = _shared(of_type.values())
        lines = [
            f"   {json.dumps(key)}: {json.dumps({name: row[name] for name in row if name not in shared})}"
            for key, row in of_type.items()
        ]
        own = {name: value for name, value in shared.items() if name not in common}
        parts.append(f'  {{"common": {json.dumps(own)}, "rows": {{\n' + ",\n".join(lines) + "}}")
    return f' {{"common": {json.dumps(common)}, "of_gpu_types": [\n' + ",\n".join(parts) + "]}"


def _shared(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = rows
    return {name: value for name, value in first.items() if all(row.get(name) == value for row in others)}


def write_condensed(path: Path, records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Write the rows of each workload to a JSON file."""
    text = ",\n".join(f"{json.dumps(name)}:\n{condensed(rows)}" for name, rows in records.items())
    path.write_text(f"{{\n{text}\n}}\n")


def record_exemplar(repository: Path, bridge: Path, tag: str, work: Path) -> None:
    release = read_release(unpack_commit(repository, tag, work / "release"))
    sandbox = make_sandbox(release.folder, work)
    unpack_pinned(release.sources, bridge, work / "bridge")
    records = {}
    for source in release.sources:
        try:
            _, rows = import_workload(release, source, sandbox)
        except NotImportable:
            continue
        keys = {f"{row.sizes} {row.gpu_types} {row.dtypes} {row.gpus}": flat(row.job) for row in rows}
        records[name_workload(release, source)] = keys
    write_condensed(DATA / "exemplar" / f"{tag}.json", records)


def make_sandbox(release: Path, work: Path) -> Sandbox:
    for name in ("bridge", "shared"):
        (work / name).mkdir()
    return Sandbox(release, work / "bridge", work / "shared")


def record_documents(benchmarking: Path, bridge: Path, work: Path) -> None:
    folder = DATA / "megatron_bridge"
    parsers = {
        release: {
            "tag": tag,
            "commit": git(bridge, "rev-list", "-n1", tag).strip(),
            "file": PARSER,
            "arguments": parser_arguments(text_at(bridge, tag, PARSER)),
        }
        for release, tag in RELEASES.items()
    }
    (folder / "parsers.json").write_text(
        _by_lines({release: entry["arguments"] for release, entry in parsers.items()}, parsers)
    )
    (work / "release").mkdir()
    sources = Sources(benchmarking, bridge, make_sandbox(work / "release", work))
    launches, documents = {}, {}
    for workload in handwritten():
        printed = rows_of(bridge, benchmarking, workload.document)
        documents[workload.workload] = {_printed_key(row): row for row in printed}
        launches[workload.workload] = launches_of(workload, printed, sources, work)
    write_condensed(folder / "launches.json", launches)
    (folder / "documents.json").write_text(_by_lines(documents, {}))


def handwritten() -> Iterator[Workload]:
    """Return the workloads of Megatron-Bridge that no import has written."""
    for name in list_workloads():
        workload = load_workload(name)
        by_name = any(isinstance(size.model, NamedRecipe) for size in workload.sizes.values())
        if by_name and not (WORKLOADS / f"{name}.yaml").read_text().startswith(WRITTEN_BY):
            yield workload


def launches_of(
    workload: Workload, printed: Sequence[Mapping[str, str]], sources: Sources, work: Path
) -> dict[str, dict[str, Any]]:
    """Return what upstream submits for each row, by recipe, GPU type, dtype and GPUs, and what it trains on.

    It is what the launch.sh beside the document starts, for the rows that the document prints. For documents
    of Megatron-Bridge itself it is what its script starts for the rows of the workload.
    """
    benchmarking, bridge, sandbox = sources
    tag = launched_at(workload)
    unpack_commit(bridge, tag, work / "bridge" / tag, *BRIDGE_FOLDERS)
    named = README.fullmatch(workload.document)
    folder = work / "release" / workload.workload
    if named is None:
        folder.mkdir()
        (folder / "launch.sh").write_text(SUBMIT)
        asked = [_asked_of_script(row) for row, _ in workload.recipes()]
    else:
        unpack_commit(benchmarking, named["tag"], folder, named["path"].rpartition("/")[0])
        folder = folder / named["path"].rpartition("/")[0]
        asked = [*_asked_of_launch(printed)]
    name = workload_name(folder) if named is not None else workload.workload
    script = f"{folder.relative_to(work / 'release')}/launch.sh"
    launches = [launch_question(script, name, tag, {"WORKLOAD": name, **variables}) for variables in asked]
    jobs = sandbox.answers("record.py", launches)
    assert not any("refused" in job for job in jobs), [job for job in jobs if "refused" in job][:1]
    questions = [_question(job) for job in jobs]
    answers = sandbox.answers("describe.py", questions, f"/bridge/{tag}")
    return {
        f"{asked['recipe']} {asked['gpu_type']} {asked['dtype']} {asked['gpus']}": {
            **flat(job),
            **answer,
            "stated": stated(bridge, asked["recipe"], answer["hub"]),
            "variants": variants(work / "bridge" / tag, asked),
        }
        for job, asked, answer in zip(jobs, questions, answers, strict=True)
    }


def launched_at(workload: Workload) -> str:
    """Return the tag or commit of the launch code that a workload's rules come from."""
    matches = (
        re.match(r"NVIDIA-NeMo/Megatron-Bridge (\S+), ", text)
        for text in workload.performance.sources.values()
    )
    [tag] = {match[1] for match in matches if match is not None}
    return tag


def workload_name(folder: Path) -> str:
    """Return the name of the folder in which a launch.sh looks for Megatron-Bridge."""
    lines = (folder / "launch.sh").read_text().splitlines()
    name = next(line.partition("=")[2] for line in lines if line.startswith("export MODEL_NAME="))
    return f"pretrain_{name.strip(chr(34))}"


def _asked_of_script(row: Recipe) -> dict[str, str]:
    assert isinstance(row.model, NamedRecipe)
    arguments = {
        **{"model_family_name": row.model.family, "model_recipe_name": row.model.recipe},
        **{"gpu": row.gpu_type, "num_gpus": row.gpus, "gpus_per_node": row.gpus_per_node},
        **{"compute_dtype": row.dtype, "max_steps": 50, "account": "none", "partition": "none"},
        **({} if row.model.variant is None else {"config_variant": row.model.variant}),
    }
    return {"ARGUMENTS": " ".join(f"--{name}={value}" for name, value in arguments.items())}


def _asked_of_launch(printed: Sequence[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    for row in printed:
        for system in row["system"].split(" and "):
            for precision in row["precision"].split("/"):
                size = row["model"].rpartition(" ")[2].lower()
                yield {
                    **{"GPU_TYPE": system.lower(), "DTYPE": precision.lower(), "JOB_TOTAL_GPUS": row["gpus"]},
                    **({"MODEL_SIZE": size} if size else {}),
                }


def _question(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question to `describe.py` about the recipe that a job starts."""
    told = {words[0]: words[1] for words in job["arguments"] if len(words) > 1}
    return {
        "family": told.get("--model_family_name", told.get("--model_name")),
        "recipe": told.get("--model_recipe_name", told.get("--model_size")),
        "gpu_type": told["--gpu"],
        "dtype": told["--compute_dtype"],
        "variant": told.get("--config_variant", "v1"),
        "gpus": int(told["--num_gpus"]),
    }


def variants(tree: Path, question: Mapping[str, Any]) -> list[str]:
    """Return the variants that upstream has of a configuration for a GPU type, dtype and number of GPUs."""
    recipe, gpu_type, dtype = (question[name] for name in ("recipe", "gpu_type", "dtype"))
    flat_name = f"{recipe}_pretrain_{question['gpus']}gpu_{gpu_type}_{dtype.replace('_', '')}"
    name = f"{recipe}_pretrain_config_{gpu_type}_{dtype}".upper()
    pattern = re.compile(rf"^(?:{name}(?:_(\w+))? = |def {flat_name}(?:_(\w+))?_config\()", re.MULTILINE)
    folders = ("scripts/performance/configs", "src/megatron/bridge/perf_recipes")
    texts = [path.read_text() for folder in folders for path in (tree / folder).rglob("*.py")]
    found = {match[1] or match[2] or "" for text in texts for match in pattern.finditer(text)}
    return sorted(variant.lower() for variant in found if variant)


def stated(bridge: Path, recipe: str, hub: Mapping[str, Sequence[str]]) -> str | None:
    """Return the parameters as a size's name has them, `30b-a3b`; None if upstream states none.

    They stand in the recipe's name, in the names of the repositories that it reads, or in a file of
    `STATED`.
    """
    if recipe in STATED:
        tag, path, pattern = STATED[recipe]
        match = re.search(pattern, text_at(bridge, tag, path))
        assert match, f"{path} does not state the parameters of {recipe}"
        total, active = (text.lower().replace("1t", "1000b") for text in match.groups())
        return total + (f"-a{active}" if active else "")
    by_use = sorted(hub, key=lambda repository: "config.json" not in hub[repository])
    for name in (recipe, *by_use):
        if match := re.search(r"(?:^|[_-])(\d+b)(?:[_-](a\d+b))?(?:[_-]|$)", name.lower()):
            return "-".join(filter(None, match.groups()))
    return None


def parser_arguments(source: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of `add_argument` by long name, as far as they are plain data."""
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.List | ast.Dict)
    }
    arguments = {}
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
        arguments[names[-1]] = {
            **{name: _plain(value, constants) for name, value in told.items()},
            **({"type": kind} if kind else {}),
        }
    return dict(sorted(arguments.items()))


def _plain(value: ast.expr, constants: Mapping[str, Any]) -> Any:
    if isinstance(value, ast.Call):  # NUM_GPUS_PER_NODE_MAP.keys()
        return list(constants[value.func.value.id])
    return ast.literal_eval(value)


def _printed_key(row: Mapping[str, str]) -> str:
    return " ".join(row[name] for name in ("model", "system", "gpus", "precision", "gbs")).strip()


def _by_lines(of_groups: Mapping[str, Mapping[str, Any]], heads: Mapping[str, Mapping[str, Any]]) -> str:
    """Return JSON with a line for each argument or row."""
    groups = []
    for group, entries in of_groups.items():
        lines = [f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        head = [
            f"   {json.dumps(name)}: {json.dumps(value)},\n"
            for name, value in heads.get(group, {}).items()
            if name != "arguments"
        ]
        opened, closed = ('   "arguments": {\n', "\n   }") if heads else ("", "")
        groups.append(
            f" {json.dumps(group)}: {{\n{''.join(head)}{opened}" + ",\n".join(lines) + f"{closed}\n }}"
        )
    return "{\n" + ",\n".join(groups) + "\n}\n"


def main(kind: str, repository: Path, bridge: Path, *tag: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        if kind == "exemplar":
            record_exemplar(repository, bridge, *tag, Path(name))
        else:
            record_documents(repository, bridge, Path(name))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:4]), *sys.argv[4:])
