"""Settings of a cluster's file in its jobs: variables, setup, binding, vboost, and the check of nodes."""

import json
import os
import re
from pathlib import Path

import pytest
from called import captured
from staged import staged_files

from steptime.clusters.jobscript import job_environment, job_spec
from steptime.clusters.local.cluster import LocalConfig
from steptime.clusters.runai.config import RunaiConfig
from steptime.clusters.slurm.config import SlurmConfig
from steptime.clusters.slurm.node_check import REFUSED, REPORT, NodeCheck, check_command, refused_nodes
from steptime.clusters.slurm.script import Binding, bound
from steptime.recipes.models import Mode, Performance
from trainer import node_check as check_program

BEGINS_WITHOUT = "steptime: vboost could not be set on every node: the training begins without it"
SETUP = ('echo "module: ${MODULE_NEVER_SET}" >>"$SAID"', "export FROM=\"setup; 'and' $((6 * 7))\"")
"""Lines that read a variable which is not set, as `module load` does."""


def slurm(tmp_path, **fields):
    told = {"name": "big", "kind": "slurm", "gpu_type": "cpu", "connection": "big", "work_dir": str(tmp_path)}
    return SlurmConfig.model_validate({**told, **fields})


def local(tmp_path, **fields):
    told = {"name": "here", "kind": "local", "gpu_type": "cpu", "work_dir": str(tmp_path)}
    return LocalConfig.model_validate({**told, **fields})


def runai(tmp_path, **fields):
    pvcs = [{"claim": "work", "path": str(tmp_path)}]
    told = {
        "name": "dgx",
        "kind": "runai",
        "gpu_type": "cpu",
        "connection": "dgx",
        "image": "x",
        "pvcs": pvcs,
    }
    return RunaiConfig.model_validate({**told, "work_dir": str(tmp_path), **fields})


@pytest.fixture
def run(make_result):
    """Return a planned run on two ranks."""
    return make_result(gpus=2).run


@pytest.fixture
def staged(tmp_path):
    """Return a trainer's environment whose python writes down how it was called."""
    python = program(tmp_path / "python", 'echo "python $FROM $WHOSE $*" >>"$SAID"')
    return staged_files(python, tmp_path)


def program(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


def script_of(run, staged, config):
    return job_spec(run, staged, config, identity="x", started=1_790_000_000).script


def executed(script, tmp_path, *, sudo="exit 1"):
    """Run a job script with stand-ins; return its exit code and what they wrote. srun starts one task."""
    [folder] = re.findall("^cd (.*)$", script, flags=re.MULTILINE)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (commands := tmp_path / "commands").mkdir(exist_ok=True)
    program(commands / "srun", 'while [[ $1 == -* ]]; do shift; done; exec "$@"')
    program(commands / "sudo", sudo)
    (said := tmp_path / "said").write_text("")
    environment = {
        **{"PATH": f"{commands}:{os.environ['PATH']}", "SAID": str(said)},
        **{"SLURMD_NODENAME": "localhost", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"},
        **{"SLURM_LOCALID": "0", "SLURM_PROCID": "0"},
    }
    done = captured(["/usr/bin/env", "bash", "-c", script], env=environment, timeout=120)
    return done.returncode, [*said.read_text().splitlines(), *done.stderr.splitlines()]


def test_each_kind_of_cluster_runs_its_setup_first_and_sets_its_variables(run, staged, tmp_path):
    for make in (slurm, local, runai):
        folder = tmp_path / make.__name__
        folder.mkdir()
        config = make(folder, setup=SETUP, environment={"WHOSE": "the $(cluster)'s"})
        code, said = executed(script_of(run, staged, config), folder)
        assert code == 0, said
        assert said[0] == "module: ", make.__name__
        assert said[1].startswith("python setup; 'and' 42 the $(cluster)'s -m "), make.__name__


def test_variables_of_run_cluster_and_workload_win_in_this_order_and_nobody_moves_the_trainer(
    run, staged, tmp_path
):
    config = local(tmp_path, environment={"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "WARN"})
    assert job_environment(run, staged, config)["OMP_NUM_THREADS"] == "2"
    published = Performance(
        environment={"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "TRACE", "NVTE_FLASH_ATTN": "1"}
    )
    own = run.model_copy(update={"environment": {"NCCL_DEBUG": "INFO"}, "performance": published})
    environment = job_environment(own, staged, config)
    assert {name: environment[name] for name in published.environment} == {
        "OMP_NUM_THREADS": "2",
        "NCCL_DEBUG": "INFO",
        "NVTE_FLASH_ATTN": "1",
    }
    assert environment["PYTHONPATH"] == str(tmp_path)


def test_nccl_is_asked_for_its_network_on_a_cluster_with_a_fabric_unless_somebody_sets_its_log(
    run, staged, tmp_path
):
    asks = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}

    def nccl(run, **fields):
        environment = job_environment(run, staged, slurm(tmp_path, **fields))
        return {name: value for name, value in environment.items() if name.startswith("NCCL_DEBUG")}

    on_gpus = run.model_copy(update={"recipe": run.recipe.model_copy(update={"gpu_type": "h100"})})
    traced = on_gpus.model_copy(update={"mode": Mode.NCCL_TRACE})
    published = Performance(environment={"NCCL_DEBUG": "WARN"})
    assert nccl(on_gpus, fabric="InfiniBand") == asks
    assert nccl(on_gpus) == {}
    assert nccl(run, fabric="InfiniBand") == {}
    assert nccl(traced, fabric="InfiniBand") == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"}
    of_recipe = on_gpus.model_copy(update={"performance": published})
    assert nccl(of_recipe, fabric="InfiniBand") == {"NCCL_DEBUG": "WARN"}
    of_cluster = {"NCCL_DEBUG_SUBSYS": "ALL"}
    assert nccl(on_gpus, fabric="InfiniBand", environment=of_cluster) == of_cluster


def test_a_setup_that_fails_ends_the_job(run, staged, tmp_path):
    config = slurm(tmp_path, setup=("bash -c 'exit 5'",))
    assert executed(script_of(run, staged, config), tmp_path) == (5, [])


def bind(command, tmp_path, numactl, cores=False):
    """Return what a rank that is bound to one of four NUMA nodes prints, with a numactl of the test's."""
    (commands := tmp_path / "commands").mkdir()
    for name in ("bash", "true", "env"):
        (commands / name).symlink_to(f"/usr/bin/{name}")
    if numactl is not None:
        program(commands / "numactl", numactl)
    done = captured(
        ["/usr/bin/bash", *bound(command, Binding(4, priority_cores=cores))[1:]],
        env={"PATH": str(commands), "SLURM_LOCALID": "5", "SLURM_PROCID": "13"},
        check=True,
        timeout=60,
    )
    return done.stdout, done.stderr


SAYS = ("bash", "-c", 'echo "$* on ${STEPTIME_NUMA_NODE:-none}"', "bash", "a  b", "$(touch canary)")


def test_a_rank_is_bound_to_the_numa_node_of_its_neighbours(tmp_path):
    binds = '[[ "$1 $2" == "--cpunodebind=1 --membind=1" ]] || exit 9; shift 2; exec "$@"'
    assert bind(SAYS, tmp_path, binds) == ("a  b $(touch canary) on 1\n", "")


@pytest.mark.parametrize(
    ("numactl", "why"),
    [
        (None, "numactl: command not found"),
        ('echo "<1> is invalid"; echo usage >&2; exit 1', "<1> is invalid"),
    ],
    ids=["no numactl", "no such node"],
)
def test_a_rank_that_cannot_be_bound_says_why_and_trains(numactl, why, tmp_path):
    said, complaint = bind(SAYS, tmp_path, numactl)
    assert said == "a  b $(touch canary) on none\n"
    assert complaint.startswith("steptime: rank 13 is not bound to NUMA node 1: ")
    assert why in complaint
    assert len(complaint.splitlines()) == 1


def test_binding_is_the_publications_unless_the_cluster_says_otherwise(run, staged, tmp_path):
    published = run.model_copy(update={"performance": Performance(ranks_per_numa_node=4)})
    expected = [
        *((run, "auto", None), (published, "auto", "4"), (published, "none", None)),
        *((run, 2, "2"), (published, 2, "2")),
    ]
    for planned, binding, ranks in expected:
        script = script_of(planned, staged, slurm(tmp_path, numa_binding=binding))
        wanted = f"  numactl \\\n  {ranks} \\\n  {staged.python} \\\n"
        assert (wanted in script) is (ranks is not None), (binding, ranks)
        assert ("numactl" in script) is (ranks is not None)


def test_vboost_is_set_where_it_was_published_and_the_cluster_lets_it(run, staged, tmp_path):
    published = run.model_copy(update={"performance": Performance(vboost=True)})
    for planned, lets, is_set in ((published, True, True), (published, False, False), (run, True, False)):
        script = script_of(planned, staged, slurm(tmp_path, vboost=lets))
        assert ("boost-slider --vboost 1" in script) is is_set
    python = program(tmp_path / "python", 'echo "vboost ${STEPTIME_VBOOST:-unset}" >>"$SAID"')
    script = script_of(
        published, staged.model_copy(update={"python": str(python)}), slurm(tmp_path, vboost=True)
    )
    for exit_code, told in ((0, ["vboost 1"]), (1, ["vboost unset", BEGINS_WITHOUT])):
        code, said = executed(script, tmp_path, sudo=f'echo "$*" >>"$SAID"; exit {exit_code}')
        assert (code, said) == (0, ["--non-interactive nvidia-smi boost-slider --vboost 1", *told])


@pytest.mark.parametrize(("exit_code", "trains"), [(0, True), (REFUSED, False), (1, True), (137, True)])
def test_only_a_refusal_ends_the_job_before_its_training(exit_code, trains, run, tmp_path):
    python = program(
        tmp_path / "python", f'echo "$*" >>"$SAID"; [[ $2 != trainer.node_check ]] || exit {exit_code}'
    )
    staged = staged_files(python, tmp_path)
    config = slurm(tmp_path, node_check={"product": "H100", "least_matmul_tflops": 0.5})
    code, said = executed(script_of(run, staged, config), tmp_path)
    assert said[0].startswith("-m trainer.node_check --device=cpu --time-limit-s=600 --product=H100 --least-")
    assert ("-m trainer run.json" in said) is trains
    assert code == (0 if trains else REFUSED)
    broken = [line for line in said if "itself ended with exit code" in line]
    assert len(broken) == (trains and exit_code != 0)


def test_what_is_demanded_of_gpus_follows_from_their_type(run, staged, tmp_path):
    on_h100 = run.model_copy(update={"recipe": run.recipe.model_copy(update={"gpu_type": "h100"})})
    script = script_of(on_h100, staged, slurm(tmp_path, gpu_type="h100", node_check={}))
    for option in ("--device=cuda", "--product=H100", "--least-matmul-tflops=494.5"):
        assert f"  {option} \\\n" in script
    on_cpu = script_of(run, staged, slurm(tmp_path, node_check={}))
    assert "--product" not in on_cpu
    assert "--least-matmul-tflops" not in on_cpu


def test_trainer_and_cluster_mean_the_same_file_and_exit_code():
    assert (REFUSED, REPORT) == (check_program.REFUSED, check_program.OUTPUT)


def test_only_a_whole_report_names_nodes():
    nodes = [{"node": "n1", "faults": [], "gpus": 8}, {"node": "n2", "faults": ["it burns", "it smells"]}]
    report = json.dumps({"schema": 1, "seconds": 1.5, "nodes": nodes}).encode()
    assert refused_nodes(report) == {"n2": "it burns; it smells"}
    for broken in (b"", b"{", report[:-9], b'{"nodes": {}}', b"[]"):
        assert refused_nodes(broken) == {}


def test_each_threshold_of_the_node_check_is_passed_on_by_its_name():
    demands = NodeCheck(
        time_limit_s=61,
        least_matmul_percent=40,
        least_free_memory_percent=11,
        least_free_gpu_memory_percent=92,
        least_power_limit_percent=83,
        least_clock_percent=74,
        xid_within_h=5,
    )
    shared = ("--least-free-memory-percent=11", "--least-free-gpu-memory-percent=92")
    shared += ("--least-power-limit-percent=83", "--least-clock-percent=74", "--xid-within-h=5")
    start = ("/venv/python", "-m", "trainer.node_check")
    on_gpus = ("--device=cuda", "--time-limit-s=61", "--product=H100", "--least-matmul-tflops=395.6")
    assert check_command(demands, "h100", "/venv/python") == (*start, *on_gpus, *shared)
    on_cpus = ("--device=cpu", "--time-limit-s=61")
    assert check_command(demands, "cpu", "/venv/python") == (*start, *on_cpus, *shared)
    given = demands.model_copy(update={"product": "A100", "least_matmul_tflops": 3.5})
    own = ("--device=cuda", "--time-limit-s=61", "--product=A100", "--least-matmul-tflops=3.5")
    assert check_command(given, "h100", "/venv/python") == (*start, *own, *shared)
