"""Writes down what the launch scripts of a release of NVIDIA/exemplar-performance submit, for tests.

    python recorders/exemplar.py path/to/exemplar-performance path/to/Megatron-Bridge TAG

The runs are those of `steptime recipes import`; here everything stands as upstream says it, row by row,
beside what is common to the rows of a workload.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steptime.recipes.importing.release import Sandbox, read_release, unpack_commit, unpack_pinned
from steptime.recipes.importing.workload import NotImportable, Row, import_workload, name_workload

HERE = Path(__file__).parents[1] / "tests/data/exemplar"
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
OF_INSTALLATION = ("HF_TOKEN", "NEMO_HOME")


def flat(row: Row) -> dict[str, Any]:
    """Return everything that a job passes to ranks, sbatch, srun and numactl, as one flat mapping."""
    executor, exported = row.job["executor"], row.job["exported"]
    told = {f"argument {words[0]}": words[1:] for words in row.job["arguments"]}
    variables = {name: value for name, value in exported.items() if name.startswith("NCCL_")} | executor[
        "env_vars"
    ]
    return {
        **told,
        **{f"variable {name}": variables[name] for name in sorted(variables.keys() - {*OF_INSTALLATION})},
        **{f"slurm {name}": executor[name] for name in OF_SLURM if executor[name] is not None},
        "slurm srun_args": executor["srun_args"],
        "time": executor["time"],
        "numactl": executor["launcher"]["template_vars"]["pre_cmds"].split(" ; ")[-1],
        "image": executor["container_image"].rpartition("/")[2],
        "experiment": row.job["experiment"],
    }


def condensed(rows: dict[str, dict[str, Any]]) -> str:
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


def _shared(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    first, *others = rows
    return {name: value for name, value in first.items() if all(row.get(name) == value for row in others)}


def main(repository: Path, bridge: Path, tag: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        release = read_release(unpack_commit(repository, tag, work / "release"))
        (work / "bridge").mkdir()
        (work / "shared").mkdir()
        sandbox = Sandbox(
            release.folder, unpack_pinned(release.sources, bridge, work / "bridge"), work / "shared"
        )
        found = {}
        for source in release.sources:
            try:
                _, rows = import_workload(release, source, sandbox)
            except NotImportable:
                continue
            keys = {f"{row.sizes} {row.gpu_types} {row.dtypes} {row.gpus}": flat(row) for row in rows}
            found[name_workload(release, source)] = condensed(keys)
    text = ",\n".join(f"{json.dumps(name)}:\n{rows}" for name, rows in found.items())
    (HERE / f"{tag}.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
