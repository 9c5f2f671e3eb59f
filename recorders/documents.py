"""Read the rows of upstream's documents of published numbers, for the workloads that name one."""

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUMMARY = re.compile(
    r"Megatron-Bridge (?P<tag>v[\d.]+), (?P<path>docs/performance-summary.md), "
    r"(?P<container>[\d.]+) NeMo container, (?P<models>.+)"
)
"""How a workload's `document` names such a document, with the headings of its models by size."""
COLUMNS = {
    **{
        "#-GPUs": "gpus",
        "Precision": "precision",
        "Sequence Length": "seq_length",
        "GBS": "gbs",
        "MBS": "mbs",
    },
    **{"TP": "tp", "PP": "pp", "CP": "cp", "VP": "vp", "EP": "ep"},
    **{"Tokens / sec / GPU": "tokens_per_s_per_gpu", "Model TFLOP / sec / GPU": "tflops_per_gpu"},
}


README = re.compile(r".*, NVIDIA/dgxc-benchmarking (?P<tag>v[\d.]+), (?P<path>\S+/README.md)")
"""How it names one of the DGX Cloud's recipes, which prints only configurations."""
OF_README = {
    **{"Precision": "precision", "GPUs": "gpus", "SeqLen": "seq_length", "Layers": "layers", "TP": "tp"},
    **{"PP": "pp", "CP": "cp", "EP": "ep", "DP": "dp", "VP": "vp", "MBS": "mbs", "GBS": "gbs", "GA": "ga"},
}


@functools.cache
def text_at(repository: Path, tag: str, path: str) -> str:
    """Return the content of a file of a git repository at a tag or commit."""
    return git(repository, "show", f"{tag}:{path}")


def git(repository: Path, *arguments: str) -> str:
    command = ("git", "-C", repository, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows_of(bridge: Path, benchmarking: Path, document: str) -> list[dict[str, str]]:
    """Return every row for pre-training that a document has of a workload's models."""
    if (of_readme := README.fullmatch(document)) is not None:
        return list(_configurations(text_at(benchmarking, of_readme["tag"], of_readme["path"])))
    named = SUMMARY.fullmatch(document)
    assert named, f"no document that can be read: {document}"
    text = text_at(bridge, named["tag"], named["path"])
    of_container = text.partition(f"## {named['container']} NeMo Container")[2].partition("\n## ")[0]
    pre_training = of_container.partition("### Pre-Training Performance")[2].partition("\n### ")[0]
    models = re.split(" and |, ", named["models"])
    return [row for row in _rows(pre_training) if row["model"] in models]


def _configurations(text: str) -> Iterator[dict[str, str]]:
    """Read tables below a heading of GPU types and, in some documents, one of a model."""
    system = model = ""
    header: list[str] = []
    for line in text.partition("\n# Performance Measurement")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if found := re.match(r"(#+) (.*)", line):
            system, model = (found[2], "") if found[1] == "##" else (system, found[2])
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif not set(line) <= set("|-: "):
            told = dict(zip(header, cells, strict=True))
            yield {"system": system, "model": model} | {ours: told[one] for one, ours in OF_README.items()}


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Read tables below a heading with the model or the system; the first column has the other of the two."""
    heading: dict[str, str] = {}
    header: list[str] = []
    for line in text.splitlines():
        cells = [re.sub(r"\[\^.*\]", "", cell).strip() for cell in line.strip("|").split("|")]
        if found := re.match(r"#### (Model|System): (.*)", line):
            heading, header = {found[1].lower(): found[2].strip()}, []
        elif not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif not set(line) <= set("|-: "):
            told: dict[str, Any] = dict(zip(header, cells, strict=True))
            first = {name.lower(): told[name] for name in ("Model", "System") if name in told}
            yield heading | first | {ours: told[theirs] for theirs, ours in COLUMNS.items()}
