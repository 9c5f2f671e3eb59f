"""A run in the form in which NVIDIA's `llmb-run` archives it: its log, and a YAML file that describes it.

pretrain_<workload>/experiments/<experiment>/<experiment>_<time>/llmb-config_<job>.yaml
pretrain_<workload>/experiments/<experiment>/<experiment>_<time>/<experiment>/log-<experiment>_<job>_0.out

The form is that of exemplar-performance v26.08.00, cli/llmb-run. `measure.importing` reads it.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from steptime.files import MOST_LOG_BYTES
from steptime.measure.run_files import find_log, log_sha256
from steptime.recipes.workloads import load_workload


class LlmbFiles(NamedTuple):
    """The log and configuration of a run, as in an archive of NVIDIA's llmb-run.

    Names are relative to the archive's top folder.
    """

    config_name: str
    config: str
    log_name: str
    log: Path


def llmb_files(row: Mapping[str, Any], record: Mapping[str, Any]) -> LlmbFiles | None:
    """Return the files that a run has in an archive of NVIDIA's llmb-run.

    None if its log is not on this machine, or too large for an import. Raises UserError if `config/` no
    longer has its workload.
    """
    log = find_log(row)
    if log is None or log.stat().st_size > MOST_LOG_BYTES:
        return None
    workload = load_workload(row["workload"])
    name = workload.llmb_name or workload.family
    experiment, job_id = record["run"]["experiment"], _plain(record["job"]["job_id"])
    folder = f"pretrain_{name}/experiments/{experiment}/{experiment}_{row['submitted_at']:.0f}"
    config = yaml.safe_dump(_config(row, record, name, job_id), sort_keys=False)
    return LlmbFiles(
        f"{folder}/llmb-config_{job_id}.yaml",
        config,
        f"{folder}/{experiment}/log-{experiment}_{job_id}_0.out",
        log,
    )


def _config(row: Mapping[str, Any], record: Mapping[str, Any], name: str, job_id: str) -> dict[str, Any]:
    run, provenance = record["run"], record["provenance"]
    recipe, image = run["recipe"], provenance["staged"]["image"] or run["recipe"]["image"]
    document = load_workload(row["workload"]).document
    release = re.search(r"\bv(\d+\.\d+(?:\.\d+)*)", document)
    framework = "megatron_bridge" if recipe["model"]["architecture"] == "megatron_bridge" else "nemo2"
    options = run["cluster_options"]
    return {
        "job_info": {
            "job_id": job_id,
            "user": "unknown",
            "launcher_type": framework,
            "launch_time": datetime.fromtimestamp(row["submitted_at"]).astimezone().isoformat(),
            "experiment_id": None,
        },
        "workload_info": {
            "framework": framework,
            "gsw_version": release[1] if release else row["workload"].rpartition("-")[2],
            "fw_version": image.rpartition(":")[2] if image else "unknown",
            "workload_type": "pretrain",
            "synthetic_dataset": True,
        },
        "model_info": {
            "model_name": name,
            "model_size": row["size"],
            # Upstream asks for fp8; its launch script decides which.
            "dtype": row["dtype"].partition("_")[0],
            "scale": row["gpus"],
            "gpu_type": row["gpu_type"],
        },
        "cluster_info": {
            "cluster_name": row["cluster"],
            "gpus_per_node": str(recipe["gpus_per_node"]),
            "slurm_account": str(options.get("account") or ""),
            "slurm_gpu_partition": str(options.get("partition") or ""),
        },
        "container_info": {"images": [image.replace("/", "#", 1)] if image else []},
        "job_config": {
            "profile_enabled": False,
            "proxy": row["proxy"],
            "strong_scaling": row["scaling"] == "strong",
            "env_overrides": run["environment"],
            "model_overrides": {},
            "mbridge_args": [],
        },
        "steptime": {
            "version": provenance["steptime_version"],
            "commit": provenance["git_commit"],
            "job_name": row["job_name"],
            "nodes": record["nodes"],
            "versions": record["versions"],
            "log_sha256": log_sha256(row),
        },
    }


def _plain(text: str) -> str:
    """Return a job id with only characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)
