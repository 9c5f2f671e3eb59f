"""The releases of the documents: where their code is, and how their launch scripts are run for a row."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MODES = {
    "checkpoint_save": ("ENABLE_CHECKPOINT", "true"),
    "checkpoint_load": ("LOAD_CHECKPOINT_PATH", "/checkpoint"),
    "profile": ("ENABLE_PROFILE", "true"),
    "nccl_trace": ("ENABLE_NCCLTRACE", "true"),
}
"""The variable that asks a launch script for a mode, for the modes that scripts know."""


Question = Callable[[Mapping[str, str], str], dict[str, str]]
"""Returns the variables that ask a `launch.sh` for a row, given the row and the script's work folder."""


@dataclass(frozen=True)
class Nemo2:
    """The packages of one release of NeMo 2."""

    nemo: str
    """The commit that was read."""
    megatron: str
    nemo_run: str
    pinned: str | None = None
    """The commit in setup.sh if it is another one, of which no copy was available."""


@dataclass(frozen=True)
class DocumentRelease:
    """One document's release in NVIDIA/dgxc-benchmarking."""

    workload: str
    tag: str
    folder: str
    ask: Question
    workload_folder: str = "."
    """Folder below its work folder in which launch.sh looks for the folder NeMo."""
    packages: Mapping[str, Nemo2] = field(default_factory=dict)
    """Packages by GPU type; empty for the document of NeMo 1, whose settings are those of a YAML file."""
    note: str = ""
    corrections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Settings by GPU type that are known to differ between the pinned commit and the one that was read."""

    def check_pins(self, setup: str) -> None:
        """Raise ValueError unless setup.sh, or else metadata.yaml, names the commits in this file."""
        for packages in self.packages.values():
            for commit in (packages.pinned or packages.nemo, packages.megatron, packages.nemo_run):
                if not re.search(rf'(_COMMIT=|commit: )"{commit}"', setup):
                    raise ValueError(f"{self.tag}:{self.folder} does not pin {commit}")


def _stage(row: Mapping[str, str], work: str) -> dict[str, str]:
    return {"STAGE_PATH": work, "HF_TOKEN": "HF_TOKEN", "MODEL_SIZE": row["size"].removesuffix("-proxy")}


def _install(row: Mapping[str, str], work: str) -> dict[str, str]:
    strong = {"STRONG_SCALING": "true"} if row["scaling"] == "strong" else {}
    return {"LLMB_INSTALL": work, "GPU_TYPE": row["gpu_type"], **strong}


def _in_job(row: Mapping[str, str], work: str) -> dict[str, str]:
    """Return the variables of the 24.11 script, which is the job's own script and reads Slurm's."""
    job = {"SLURM_JOB_NUM_NODES": str(int(row["gpus"]) // 8), "SLURM_JOB_ID": "1", "SLURM_LOCALID": "0"}
    return {"STAGE_PATH": work, "MODEL_SIZE": row["size"], **job}


_NEMO_25_04 = Nemo2(
    nemo="d2b21556f2455b52ad7217f334bb66eaa13c0f83",
    megatron="ee6737da824b18f945946b4c798adf2328374cb7",
    nemo_run="fb550a3738768fbf1100e1579f3ca0e2207c6487",
)
_NEMO_25_05 = Nemo2(
    nemo="7a8f1cc7bc40a84447c0681a9e4e956a135ae8a2",
    megatron="7094270c6fa1dbc6b2e99072171e3a559ca36d0f",
    nemo_run="f3c3ac22fe169acf93aa7647ab9785290537d4a4",
)
_NEMO_25_12_BLACKWELL = Nemo2(
    nemo="1f422a19d942fab0aa54e3099f4b5752d871cb5d",
    megatron="ac198fc0d60a8c748597e01ca4c6887d3a7bcf3d",
    nemo_run="04f900a9c1cde79ce6beca6a175b4c62b99d7982",
)
_NEMO_25_12 = Nemo2(
    nemo="e990789ed7e1f8a658cab73e79e00e0a10c0c110",
    pinned="f260da5d65fccdf9c78283647f7497d9428fb654",
    megatron="20d73fe76eb03672c02f637e9b47e562b9010d4c",
    nemo_run="04f900a9c1cde79ce6beca6a175b4c62b99d7982",
)

RELEASES = (
    DocumentRelease(
        workload="llama3.1-25.04",
        tag="v25.04.02",
        folder="llama3.1",
        ask=_stage,
        packages={"h100": _NEMO_25_04},
    ),
    DocumentRelease(
        workload="nemotron4-25.04",
        tag="v25.04.02",
        folder="nemotron",
        ask=_stage,
        packages={"h100": _NEMO_25_04},
    ),
    DocumentRelease(
        workload="nemotron-h-25.05",
        tag="v25.05.05",
        folder="nemotronh",
        ask=_install,
        workload_folder="workloads/pretrain_nemotronh",
        packages={"h100": _NEMO_25_05},
    ),
    DocumentRelease(
        workload="nemotron4-340b-25.12",
        tag="v25.12.02",
        folder="nemotron4-340b",
        ask=_install,
        workload_folder="workloads/pretrain_nemotron4-340b",
        packages={
            "h100": _NEMO_25_12,
            "gb300": _NEMO_25_12,
            "b200": _NEMO_25_12_BLACKWELL,
            "gb200": _NEMO_25_12_BLACKWELL,
        },
        note=(
            "setup.sh pins NeMo f260da5d for H100 and GB300 and 1f422a19 for B200 and GB200; "
            "metadata.yaml, which the llmb-install of the document's README reads, pins 032e4de5 and "
            "0a6b4439. Of the four only 1f422a19 could be read whole. H100 and GB300 were read at "
            "e990789e, the newest commit of NeMo's branch llmb-nemo-r2.5.0 that could be had (16 "
            "September 2025). Its parser does not list gb300, and its executors.py binds 4 ranks per "
            "NUMA node wherever the GPU type is not gb200; the same file at 0406e44b "
            "(NVIDIA-NeMo/Speech) binds 2 on gb300 and sets no NCCL_NET_GDR_LEVEL. At 032e4de5 "
            "pretrain_nemotron4_340b.py differs from e990789e in the tokenizer (Hugging Face's, not "
            "the null tokenizer), in that it sets no NCCL_NET_GDR_LEVEL, and in profilers."
        ),
        corrections={"gb300": {"launch.ranks_per_numa_node": 2}},
    ),
    DocumentRelease(
        workload="nemotron4-340b-24.11",
        tag="v24.11.1",
        folder="nemotron",
        ask=_in_job,
        note=(
            "NeMo 1 of the image nemo:24.09: the job's settings are nemotron4-340b-synth.yaml with "
            "the overrides of configure.sh. What neither names is the default of the image's NeMo, "
            "and is not recorded."
        ),
    ),
)
