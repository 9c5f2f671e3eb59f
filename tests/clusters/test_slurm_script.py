"""The job script for Slurm: which resources it asks for, how it starts the ranks, and what is refused."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from called import captured
from pydantic import ValidationError
from staged import staged_files

from recorders.nemo.settings_record import load
from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.cluster import SlurmConfig
from steptime.clusters.slurm.script import profiled
from steptime.clusters.slurm.submit import submit_command
from steptime.errors import UserError
from steptime.recipes.models import Mode
from steptime.recipes.node_lists import fold_nodes
from steptime.recipes.planning import parse_request, plan

VENV = staged_files("/shared/venvs/trainer-1/bin/python", "/shared/trainer/1", venv_lock_sha256="a" * 64)
IMAGE = VENV.model_copy(update={"python": None, "image_path": "/shared/images/nvidia+nemo+25.02.01.sqsh"})


def site(**fields):
    told = {"name": "big", "kind": "slurm", "gpu_type": "h100", "work_dir": "/shared", "connection": "big"}
    return SlurmConfig.model_validate({**told, **fields})


def planned(workload, **values):
    return plan(parse_request({"workload": workload, **values})).runs[0]


def script_of(run, config, staged=VENV):
    return job_spec(run, staged, config, identity="x", started=1_790_000_000).script


def asked(script):
    """Return the options in the #SBATCH lines."""
    return re.findall(r"^#SBATCH (\S+)$", script, flags=re.MULTILINE)


def test_no_job_is_cut_short_and_none_comes_back_by_itself(two_ranks):
    minutes = {1: "1", 60: "1", 61: "2", 930: "16"}
    for seconds, asked_for in minutes.items():
        run = two_ranks.model_copy(update={"time_limit_s": seconds})
        spec = job_spec(run, VENV, site(), identity="x", started=1_790_000_000)
        command = submit_command(spec, root="/shared", folder="/shared/jobs/x")
        assert [word for word in command if word.startswith("--time=")] == [f"--time={asked_for}"]
        assert {"--no-requeue", "--kill-on-invalid-dep=yes"} <= set(command)


@pytest.fixture
def two_ranks(make_result):
    return make_result(gpus=2).run


def test_what_the_cluster_wants_is_asked_for(two_ranks):
    config = site(
        gpus_per_node=1,
        partition="batch",
        account="llm_bench",
        gpu_option="none",
        exclusive=False,
        extra_options=("--constraint=gpu&nvlink", "--contiguous"),
    )
    script = script_of(two_ranks, config)
    assert asked(script) == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
        *("--partition=batch", "--account=llm_bench", "'--constraint=gpu&nvlink'", "--contiguous"),
    ]


@pytest.mark.parametrize(
    ("gpu_option", "switched", "options"),
    [
        ("gres", None, ["--gres=gpu:8"]),
        ("gpus-per-node", None, ["--gpus-per-node=8"]),
        ("gpus", None, ["--gpus=16"]),
        ("none", None, []),
        ("gpus-per-node", False, []),
        ("gpus-per-node", True, ["--gpus-per-node=8"]),
        ("none", True, ["--gres=gpu:8"]),
    ],
)
def test_the_cluster_says_how_gpus_are_asked_for(gpu_option, switched, options):
    run = planned("llama3.1", size="8b", gpus="16")
    run = run.model_copy(update={"cluster_options": {"gres": switched}})
    wanted = asked(script_of(run, site(gpu_option=gpu_option)))
    assert [option for option in wanted if option.startswith(("--gres", "--gpus"))] == options


def test_ranks_that_cannot_be_spread_evenly_are_refused():
    run = planned("llama3.1", size="8b", gpus="16")
    with pytest.raises(UserError, match="16 GPUs cannot be spread over nodes of 3 on cluster 'big'"):
        script_of(run, site(gpus_per_node=3))


def test_a_checkpoint_from_elsewhere_is_mounted():
    here = planned("llama3.1", size="8b", gpus="16", load_checkpoint="/shared/experiments/x/saved")
    elsewhere = planned("llama3.1", size="8b", gpus="16", load_checkpoint="/archive/saved")
    config = site(container="pyxis", container_mounts=("/data", "/sets:ro"))
    of_site = "--container-mounts=/shared:/shared:ro,/data:/data,/sets:/sets:ro,"
    assert f"{of_site}/shared/experiments/" in script_of(here, config, IMAGE)
    assert f"{of_site}/archive/saved:/archive/saved:ro,/shared/experiments/" in script_of(
        elsewhere, config, IMAGE
    )


@pytest.mark.parametrize("folder", ["/a,b:/etc", "/a b", "relative"])
def test_folders_that_would_be_other_mounts_are_refused(folder):
    run = planned("llama3.1", size="8b", gpus="16")
    with pytest.raises(UserError, match="cannot be mounted into a container"):
        script_of(run, site(container="pyxis", container_mounts=(folder,)), IMAGE)


def test_a_job_of_the_staging_is_counted_and_placed_as_its_run(two_ranks):
    run = two_ranks.model_copy(
        update={
            "cluster_options": {
                "account": "mine",
                "reservation": "bench",
                "additional_slurm_params": "mem=100G",
            }
        }
    )
    extra = ("--qos=low", "--constraint=big", "--exclude=n1", "--contiguous")
    fields = {"partition": "batch", "account": "llm", "extra_options": extra}
    one_task = ("--nodes=1", "--ntasks=1")
    assert site(**fields).staging_job_options(run) == (
        *(*one_task, "--partition=batch", "--reservation=bench", "--constraint=big"),
        *("--account=mine", "--qos=low"),
    )
    # Other nodes than those that are reserved, and have the feature.
    assert site(**fields, import_partition="cpu").staging_job_options(two_ranks) == (
        *(*one_task, "--partition=cpu", "--account=llm", "--qos=low"),
    )
    assert site().staging_job_options(two_ranks) == one_task


def test_what_a_run_asks_of_slurm_wins_over_the_clusters_file(two_ranks):
    options = {
        "gpus_per_node": 1,
        "partition": "debug",
        "nodelist": "node[001-004]",
        "exclude": "node003",
        "reservation": "bench",
        "segment": 2,
        "gres": False,
        "additional_slurm_params": "mem=100G;constraint=gpu&memory;qos=high",
    }
    config = site(gpus_per_node=8, partition="batch", account="llm", extra_options=("--qos=low", "--nice=5"))
    assert asked(script_of(two_ranks.model_copy(update={"cluster_options": options}), config)) == [
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--exclusive", "--mem=100G"),
        *("--partition=debug", "--account=llm", "--qos=high", "--nice=5"),
        *("'--nodelist=node[001-004]'", "--exclude=node003", "--reservation=bench", "--segment=2"),
        "'--constraint=gpu&memory'",
    ]


def test_a_segment_divides_the_nodes():
    run = planned("nemotron4-340b", gpu_type="gb200", gpus="128")
    with pytest.raises(UserError, match="segment 5 does not divide the 32 nodes of 340b·fp8·128"):
        script_of(run.model_copy(update={"cluster_options": {"segment": 5}}), site())


BY_JOB = "profile_%q{SLURM_JOB_ID}_%q{SLURM_NODEID}_%q{SLURM_PROCID}"


@pytest.mark.parametrize(
    ("workload", "report", "metrics"),
    [
        ("nemotron4-340b-24.11", BY_JOB, "--gpu-metrics-device=all"),
        ("llama3.1-25.04", "profile_%p", "--gpu-metrics-device=all"),
        ("nemotron-h-25.05", BY_JOB, "--gpu-metrics-devices=all"),
    ],
)
def test_nsight_starts_every_rank_as_the_document_does(workload, report, metrics):
    """Reports have the document's names; the other options are those recorded from upstream's code."""
    run = planned(workload, gpu_type="h100", profile=True, gpu_metrics=True)
    script = script_of(run, site(container="pyxis"), IMAGE)
    assert "\nmkdir -p nsys_profile\n" in script
    assert 'exec nsys profile "$@"' in script
    assert f"set -- {metrics} " in script
    assert "gpu-metrics" not in script.replace(metrics, "")
    options = re.findall(r"^  '?(--[a-z-]+=[^\s']+)'? \\$", script.partition("  nsys \\\n")[2], re.MULTILINE)
    assert f"--output=nsys_profile/{report}" in options
    profiled = load().get(workload, {}).get("modes", {}).get("profile", {}).get("settings", {})
    if "launch.nsys_trace" in profiled:
        assert options[:3] == [
            "--sample=none",
            f"--trace={','.join(profiled['launch.nsys_trace'])}",
            options[2],
        ]
        assert options[3 : 3 + len(profiled["launch.nsys_extra_args"])] == profiled["launch.nsys_extra_args"]
    if workload == "nemotron4-340b-24.11":
        assert not [option for option in options if "event-trace" in option], (
            "upstream does not set it in this image"
        )


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("gpu_metrics", [True, False])
def test_nsight_is_used_where_an_image_has_it(tmp_path, *, installed, gpu_metrics):
    """A stand-in for nsys prints its arguments."""
    if installed:
        nsys = tmp_path / "nsys"
        nsys.write_text('#!/bin/sh\necho "nsys $STEPTIME_NSIGHT $*"\n')
        nsys.chmod(0o755)
    run = planned("llama3.1", size="8b", gpus="16", profile=True, gpu_metrics=gpu_metrics)
    command = profiled(run, ("echo", "trained", "--run", "$(x)"))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_LOCALID": "0"}
    told = captured(command, env=environment, check=True).stdout
    if not installed:
        assert told == "trained --run $(x)\n"
        return
    assert told.startswith("nsys 1 profile ")
    assert told.endswith(" echo trained --run $(x)\n")
    assert ("--gpu-metrics-device=all" in told) is gpu_metrics


def test_a_trace_on_the_cpu_sets_what_torch_logs(two_ranks):
    cpu = two_ranks.model_copy(
        update={"mode": Mode.NCCL_TRACE, "environment": {"TORCH_CPP_LOG_LEVEL": "WARNING"}}
    )
    script = script_of(cpu, site())
    assert "\nexport TORCH_DISTRIBUTED_DEBUG=DETAIL\n" in script
    assert "\nexport TORCH_CPP_LOG_LEVEL=WARNING\n" in script, "the run's own wins"
    assert "NCCL_DEBUG" not in script


@pytest.mark.parametrize(
    ("own", "extra", "excluded"),
    [
        ({}, (), "--exclude=n[7-8]"),
        ({"exclude": "n[1-3]"}, (), "--exclude=n[1-3,7-8]"),
        ({}, ("--exclude=n9",), "--exclude=n[7-9]"),
        ({"nodelist": "n[6-7]"}, (), "--exclude=n8"),
        ({"nodelist": "n[7-8]"}, (), None),
        ({"exclude": "n[5-8]"}, ("--exclude=n9",), "--exclude=n[5-8]"),
        ({}, ("--nodelist=n7",), "--exclude=n8"),
    ],
)
def test_a_resubmitted_run_avoids_nodes_that_failed_unless_they_are_asked_for(
    two_ranks, own, extra, excluded
):
    run = two_ranks.model_copy(update={"cluster_options": own})
    config = site(extra_options=extra)
    avoiding = config.avoiding(run, ("n7", "n8"))
    options = [option.strip("'") for option in asked(script_of(avoiding, config)) if "--exclude=" in option]
    assert options == [excluded] * bool(excluded)
    assert [f"--exclude={fold_nodes(config.excluded_nodes(avoiding))}"] * bool(excluded) == options
    assert config.avoiding(run, ()) == run


SIGNALS = """#!/bin/bash
kill -TERM "$(cat "$PID_FILE")"
echo RUNNING
"""


def test_a_second_signal_does_not_interrupt_the_record_of_the_end(two_ranks, tmp_path):
    """The first signal arrives before srun has started, the second while the record is written."""
    spec = job_spec(two_ranks, VENV, site(work_dir=str(tmp_path)), identity="x", started=1_790_000_000)
    Path(spec.directory).mkdir(parents=True)
    (tmp_path / "job.sh").write_text(spec.script)
    for name in ("getent", "squeue"):
        (tmp_path / name).write_text(SIGNALS)
        (tmp_path / name).chmod(0o755)
    variables = {
        **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "PID_FILE": str(tmp_path / "pid")},
        **{"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"},
    }
    start = 'echo $$ >"$PID_FILE"; exec bash "$0"'
    done = subprocess.run(["/bin/bash", "-c", start, tmp_path / "job.sh"], env=variables, check=False)

    (record,) = Path(spec.directory).glob("*.json")
    assert json.loads(record.read_text())["exit_code"] == done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("path", "why"), [("/a\nb", "non-printable"), ("/a\\b", "backslash")])
def test_a_folder_that_slurm_cannot_print_is_refused(path, why):
    with pytest.raises(ValidationError, match=why):
        site(work_dir=path)
