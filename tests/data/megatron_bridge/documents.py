"""The rows of upstream's document of published numbers, as it prints them, for the workloads that name it."""

import re
from collections.abc import Iterator
from typing import Any

from upstream import shown

SUMMARY = re.compile(
    r"Megatron-Bridge (?P<tag>v[\d.]+), (?P<path>docs/performance-summary.md), "
    r"(?P<container>[\d.]+) NeMo container, (?P<models>.+)"
)
"""How a workload's `document` names it: with the headings of its models, in the order of its sizes."""
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


def rows_of(clone: str, document: str) -> list[dict[str, str]] | None:
    """Every row of pre-training that a document has of a workload's models; None for another document."""
    if (named := SUMMARY.fullmatch(document)) is None:
        return None
    text = shown(clone, named["tag"], named["path"])
    of_container = text.partition(f"## {named['container']} NeMo Container")[2].partition("\n## ")[0]
    pre_training = of_container.partition("### Pre-Training Performance")[2].partition("\n### ")[0]
    models = re.split(" and |, ", named["models"])
    return [row for row in _rows(pre_training) if row["model"] in models]


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Of tables below a heading that names the model, or the system; the other one is their first column."""
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
