"""`steptime recipes import`, with a small release and a small Megatron-Bridge that this file has in full."""

import os
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.recipes.config_files import load_yaml_model
from steptime.recipes.importing import workload as importing
from steptime.recipes.importing.recorder.describe import Anything
from steptime.recipes.importing.release import unpack_commit
from steptime.recipes.workload_file import Workload

METADATA = """
    downloads: {huggingface: [{repo_id: tiny/Tiny-7B}, {repo_id: tiny/Other}]}
    general: {workload: tiny_one, display_name: Tiny, workload_type: pretrain, framework: megatron_bridge}
    container: {images: ["nvcr.io#nvidia/nemo:99.01.00"]}
    repositories: {megatron_bridge: {commit: COMMIT}}
    run:
      launcher_type: megatron_bridge
      gpu_configs:
        gb200:
          model_configs: [{model_size: 7b, dtypes: {fp8: [8, 16], bf16: {scales: [8], proxy_scales: [4]}}}]
        h100: {model_configs: [{model_size: 7b, dtypes: [bf16], scales: [16]}]}
"""
LAUNCH = """
    set -eu
    export FW_VERSION=99.01.00
    if [[ $JOB_TOTAL_GPUS == 16 ]]; then export NCCL_TUNED=1; VARIANT=v2; fi
    [[ $GPU_TYPE == gb200 ]] && PER_NODE=4 || PER_NODE=8
    [[ $DTYPE == fp8 ]] && DTYPE=fp8_mx
    cd $LLMB_INSTALL/workloads/pretrain_tiny_one/Megatron-Bridge
    python3 scripts/performance/setup_experiment.py --model_family_name tiny --model_recipe_name tiny_7b \\
      --gpu $GPU_TYPE -ng $JOB_TOTAL_GPUS --gpus_per_node $PER_NODE --compute_dtype $DTYPE --max_steps 50 \\
      --config_variant ${VARIANT:-v1} --account $SBATCH_ACCOUNT
"""
SUBMITTER = """
    import sys
    import nemo_run as run
    from nemo_run.core.execution.launcher import SlurmTemplate
    from argument_parser import parse_cli_args
    args = parse_cli_args().parse_args()
    numactl = "numactl --cpunodebind=$((SLURM_LOCALID/2)) --membind=$((SLURM_LOCALID/2))"
    executor = run.SlurmExecutor(
        ntasks_per_node=args.gpus_per_node, time="00:20:00", container_mounts=[], srun_args=["--mpi=pmix"],
        env_vars={"HF_TOKEN": "none", "NCCL_NVLS_ENABLE": "0", "NEMO_HOME": "/llmb/home"},
        launcher=SlurmTemplate(template_vars={"pre_cmds": f"true ; {numactl}"}),
    )
    script = run.Script(path=__file__.replace("setup_experiment", "run_script"), args=sys.argv[1:])
    name = f"gpus{args.num_gpus}_tp1_pp2_cp1_vpNone_ep1_etpNone_mbs1_gbs{args.num_gpus * 2}"
    run.run(script, executor=executor, name=name)
"""
PARSER = """
    import argparse
    def parse_cli_args():
        parser = argparse.ArgumentParser()
        names = "model_family_name model_recipe_name gpu compute_dtype config_variant account"
        for name in names.split():
            parser.add_argument(f"--{name}")
        parser.add_argument("-ng", "--num_gpus", type=int)
        parser.add_argument("--gpus_per_node", type=int)
        parser.add_argument("--max_steps", type=int)
        return parser
"""
RANK = """
    args.model_family_name, args.model_recipe_name, args.gpu
    args.num_gpus, args.compute_dtype, args.max_steps
"""
RECIPE = """
    from types import SimpleNamespace
    from megatron.bridge import AutoBridge
    def get_perf_optimized_recipe(**told):
        AutoBridge.from_hf_pretrained("tiny/Tiny-7B")
        nothing = SimpleNamespace(tokenizer_type="NullTokenizer", sequence_length=None, seq_length=4096)
        return SimpleNamespace(model=nothing, dataset=nothing, tokenizer=nothing)
"""


SUITE = "{config: {scale: 16}, workloads: {gb200: [{pretrain_tiny_one_7b: {dtypes: [fp8]}}]}}"


def git(folder, *words):
    command = ["/usr/bin/git", "-C", str(folder), *words]
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout


@pytest.fixture
def upstream(bwrap, tmp_path):
    """Return a checkout of a release, and a git repository of Megatron-Bridge beside it."""
    bridge, release = tmp_path / "Megatron-Bridge", tmp_path / "exemplar-performance"
    scripts = bridge / "scripts/performance"
    files = {
        "setup_experiment.py": SUBMITTER,
        "argument_parser.py": PARSER,
        "run_script.py": RANK,
        "utils/utils.py": RECIPE,
        "utils/overrides.py": "args.config_variant",
    }
    for name, text in files.items():
        (scripts / name).parent.mkdir(parents=True, exist_ok=True)
        (scripts / name).write_text(dedent(text))
    (bridge / "src/megatron/bridge/recipes").mkdir(parents=True)
    (bridge / "src/megatron/bridge/recipes/__init__.py").touch()
    by = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*by, "commit", "-q", "-m", "a")):
        git(bridge, *command)
    (release / "tiny").mkdir(parents=True)
    (release / "release.yaml").write_text("llmb_version: '99.01.00'\n")
    (release / "tiny/metadata.yaml").write_text(
        dedent(METADATA).replace("COMMIT", git(bridge, "rev-parse", "HEAD").strip())
    )
    (release / "tiny/launch.sh").write_text(dedent(LAUNCH))
    return release, bridge


def imported(release, into, *more):
    options = [*([] if into is None else ["--into", str(into)]), *more]
    done = CliRunner().invoke(app, ["recipes", "import", str(release), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_what_upstreams_code_sets_in_an_unknown_thing_it_reads_again():
    thing = Anything(known=1)
    thing.unknown.deep = 2
    assert (thing.known, thing.unknown.deep, thing.unknown is thing.unknown) == (1, 2, True)


def recorded(sizes="7b", gpu_types="h100", dtypes="bf16", gpus=8, time="00:20:00"):
    job = {"executor": {"time": time}}
    return importing.RecordedRun(sizes, gpu_types, dtypes, gpus, upstream=None, job=job)


EVERY = [recorded(dtypes=dtype, gpus=gpus) for dtype in ("bf16", "fp8", "nvfp4") for gpus in (8, 16)]


@pytest.mark.parametrize(
    ("held", "conditions"),
    [
        ((0, 1, 2, 3, 4, 5), [{}]),
        ((0, 1), [{"dtypes": ["bf16"]}]),
        ((5, 3, 1), [{"gpus": [16]}]),
        ((0, 2), [{"dtypes": ["bf16", "fp8"], "gpus": [8]}]),
        ((0, 1, 2), [{"dtypes": ["bf16"]}, {"dtypes": ["fp8"], "gpus": [8]}]),
        (
            (0, 1, 2, 5),
            [{"dtypes": ["bf16", "fp8"], "gpus": [8]}, {"dtypes": ["bf16", "nvfp4"], "gpus": [16]}],
        ),
    ],
    ids=["all", "a dtype", "a count", "a box", "by dtype", "by count"],
)
def test_conditions_select_the_rows_of_a_setting_and_no_others_with_few_rules(held, conditions):
    assert importing._conditions([EVERY[number] for number in held], EVERY) == conditions


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({("7b", "h100"): 20, ("7b", "gb200"): 20, ("70b", "h100"): 40}, ({"7b": 20, "70b": 40}, {})),
        (
            {("7b", "h100"): 40, ("7b", "gb200"): 20, ("70b", "h100"): 40, ("70b", "b200"): 30},
            ({"7b": 20, "70b": 20}, {"h100": 40, "b200": 30}),
        ),
        ({("7b", "h100"): 40, ("70b", "h100"): 20, ("7b", "gb200"): 20}, None),
    ],
    ids=["by size", "by type of GPU", "by both"],
)
def test_time_limits_are_those_of_sizes_or_of_types_of_gpu(limits, found):
    rows = [recorded(size, gpu_type, time=limit) for (size, gpu_type), limit in limits.items()]
    if found is None:
        with pytest.raises(importing.NotImportable, match="more than the size or the type"):
            importing._time_limits(rows)
    else:
        assert importing._time_limits(rows) == found


@pytest.mark.long
def test_a_release_becomes_a_workload(upstream, tmp_path):
    """Rows, batches, variables and arguments are those that its launch script submits, without secrets."""
    release, _ = upstream
    printed = imported(release, tmp_path / "out")
    path = tmp_path / "out/tiny-one-99.01.yaml"
    workload = load_yaml_model(path, Workload, named_in="workload")
    rows = {(row.gpu_type, row.dtype, row.gpus): row for row, _ in workload.recipes()}
    assert rows.keys() == {
        ("gb200", "fp8_mx", 8),
        ("gb200", "fp8_mx", 16),
        ("gb200", "bf16", 8),
        ("h100", "bf16", 16),
    }
    row = rows["gb200", "fp8_mx", 16]
    assert (row.parallelism.pipeline, row.global_batch_size, row.image) == (
        2,
        32,
        "nvcr.io/nvidia/nemo:99.01.00",
    )
    assert (row.model.seq_length, row.model.hub) == (4096, {"tiny/Tiny-7B": ("config.json",)})
    of_16, of_8 = (
        workload.performance.of(rows["gb200", "fp8_mx", gpus], "7b", "performance", "slurm")
        for gpus in (16, 8)
    )
    assert of_16.environment == {"NCCL_NVLS_ENABLE": "0", "NCCL_TUNED": "1"}
    assert of_8.environment == {"NCCL_NVLS_ENABLE": "0"}
    assert (of_16.arguments, of_8.arguments) == ({"config_variant": "v2"}, {"config_variant": "v1"})
    assert of_8.ranks_per_numa_node == 2
    for sentence in (
        "1 runs of shrunken models",
        "variable HF_TOKEN, a secret",
        "variable NEMO_HOME, a folder",
        "download tiny/Other, which none of its runs asks for",
    ):
        assert sentence in printed

    first = path.read_text()
    imported(release, tmp_path / "out")
    assert path.read_text() == first, "nothing has changed upstream"


def test_an_interrupted_unpacking_leaves_nothing(upstream, tmp_path, monkeypatch):
    _, bridge = upstream
    commit, unpacked = git(bridge, "rev-parse", "HEAD").strip(), tmp_path / "bridges/unpacked"
    program = tmp_path / "bin/tar"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ntouch $3/first\nexit 1\n")
    program.chmod(0o755)
    with monkeypatch.context() as first:
        first.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        with pytest.raises(subprocess.CalledProcessError):
            unpack_commit(bridge, commit, unpacked, "src")
    unpack_commit(bridge, commit, unpacked, "src")
    assert (unpacked / "src/megatron/bridge").is_dir()
    assert list(unpacked.parent.iterdir()) == [unpacked]


def test_by_default_the_files_are_written_where_the_config_has_them(upstream, tmp_path, monkeypatch):
    release, _ = upstream
    (release / "exemplar.yaml").write_text(SUITE)
    config = tmp_path / "config"
    config.mkdir()
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    imported(release, None)
    files = {str(path.relative_to(config)) for path in config.rglob("*.yaml")}
    assert files == {"workloads/tiny-one-99.01.yaml", "sweeps/exemplar-gb200.yaml"}


def test_a_file_of_a_person_is_not_replaced(upstream, tmp_path):
    release, _ = upstream
    (release / "exemplar.yaml").write_text(SUITE)
    out = tmp_path / "out"
    imported(release, out)
    workload, sweep = out / "tiny-one-99.01.yaml", out / "exemplar-gb200.yaml"
    for path in (workload, sweep):
        written = path.read_text()
        path.write_text("of: a person\n")
        assert f"{path} is not of an import; move it away" in imported(release, out).replace("\n", " ")
        assert path.read_text() == "of: a person\n"
        path.write_text(written)


def test_a_file_of_a_newer_release_is_not_replaced(upstream, tmp_path):
    release, _ = upstream
    (release / "exemplar.yaml").write_text(SUITE)
    out = tmp_path / "out"
    imported(release, out)
    sweep = out / "exemplar-gb200.yaml"
    older, newer = (
        sweep.read_text().replace("v99.01", "v99.00"),
        sweep.read_text().replace("v99.01", "v99.10"),
    )
    sweep.write_text(newer)
    printed = imported(release, out).replace("\n", " ")
    assert f"{sweep} is of v99.10.00, which is newer than v99.01.00; move it away" in printed
    assert sweep.read_text() == newer
    sweep.write_text(older)
    imported(release, out)
    assert "v99.01.00" in sweep.read_text()
    assert "is newer" not in imported(release, out).replace("\n", " "), "the same release once more"


@pytest.mark.long
def test_upstreams_code_reaches_nothing_of_this_machine(upstream, tmp_path):
    """It cannot read or write a user's files and has no network; the script here tries all of that."""
    release, _ = upstream
    (tmp_path / "secret").write_text("of a person")
    launch = release / "tiny/launch.sh"
    attempts = f"""
        ! cat {tmp_path}/secret {Path.home()}/.* || exit 11
        ! touch {tmp_path}/written /release/written /usr/written || exit 12
        [[ $(cat /proc/net/dev | wc -l) == 3 ]] || exit 13
        [[ -z ${{STEPTIME_SECRET:-}} ]] || exit 14
    """
    launch.write_text(dedent(attempts) + launch.read_text())
    assert "4 runs" in imported(release, tmp_path / "out")
    assert not (tmp_path / "written").exists()


def test_what_a_launch_script_refuses_is_named(upstream, tmp_path):
    release, _ = upstream
    launch = release / "tiny/launch.sh"
    for refusing, said in {
        "echo 'no such scale' >&2; exit 1": "no such scale",
        "cd /tmp; echo 'raise SystemExit(\"no such model\")' >no.py; python3 no.py": "no such model",
    }.items():
        launch.write_text(refusing)
        printed = imported(release, tmp_path / "out")
        assert f"left out: tiny launch.sh of this recipe refuses every run: {said}" in printed


@pytest.mark.long
def test_a_gpu_type_that_the_release_does_not_list(upstream, tmp_path):
    """The launch script is asked for the listed type, and Megatron-Bridge for the new one."""
    release, bridge = upstream
    submitter, metadata = bridge / "scripts/performance/setup_experiment.py", release / "tiny/metadata.yaml"
    before = git(bridge, "rev-parse", "HEAD").strip()
    own = """
        if args.gpu == "vr200":
            assert args.gpus_per_node == 4 and args.compute_dtype == "fp8_mx", "no bf16 on VR200"
            name, executor.env_vars["NCCL_RUBIN"] = name.replace("_pp2_", "_pp1_"), "1"
        run.run("""
    submitter.write_text(submitter.read_text().replace("run.run(", dedent(own).lstrip()))
    git(bridge, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", "b")
    metadata.write_text(metadata.read_text().replace(before, git(bridge, "rev-parse", "HEAD").strip()))

    printed = imported(release, tmp_path / "out", "--like", "vr200=gb200")
    assert "6 runs" in printed
    assert "left out: runs that upstream's scripts refuse: 7b bf16 on 8 vr200" in printed
    path = tmp_path / "out/tiny-one-99.01.yaml"
    workload = load_yaml_model(path, Workload, named_in="workload")
    rows = {(row.gpu_type, row.gpus): row for row, _ in workload.recipes() if row.dtype == "fp8_mx"}
    assert rows.keys() == {(gpu_type, gpus) for gpu_type in ("gb200", "vr200") for gpus in (8, 16)}
    row, like = rows["vr200", 16], rows["gb200", 16]
    assert (row.parallelism.pipeline, like.parallelism.pipeline) == (1, 2)
    assert (row.gpus_per_node, row.image) == (4, "nvcr.io/nvidia/nemo:99.01.00")
    of_row, of_like = (
        workload.performance.of(of, "7b", "performance", "slurm").environment for of in (row, like)
    )
    assert of_row == {**of_like, "NCCL_RUBIN": "1"}
    assert "it was asked for gb200, and Megatron-Bridge for vr200" in path.read_text()


def test_a_launch_script_whose_gpu_type_cannot_be_replaced_is_refused(upstream, tmp_path):
    release, _ = upstream
    launch = release / "tiny/launch.sh"
    launch.write_text(launch.read_text().replace("--gpu $GPU_TYPE", "--gpu=$GPU_TYPE"))
    printed = imported(release, tmp_path / "out", "--like", "vr200=gb200")
    assert "4 runs" in printed
    assert (
        "runs that upstream's scripts refuse: 7b fp8 on 8 vr200, 7b fp8 on 16 vr200, 7b bf16 on 8 vr200"
        in printed
    )


@pytest.mark.parametrize("pair", ["vr200=gb201", "h100=gb200", "vr300=gb200", "vr200"])
def test_a_wrong_gpu_type_is_refused_with_the_right_ones(upstream, tmp_path, pair):
    command = ["recipes", "import", str(upstream[0]), "--into", str(tmp_path / "out"), "--like", pair]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert f"--like '{pair}'" in str(done.exception)
    assert "LISTED one of gb200, h100" in str(done.exception)


@pytest.mark.parametrize(
    ("upstreams_code", "reason"),
    [
        (
            '\ndef get_exp_name_config(base):\n    return f"gbs{base.gbs}"\n',
            "the global batch size of its runs is unknown",
        ),
        ("\nimport not_there\n", "do not say what they train on"),
    ],
    ids=["a batch that is not scaled", "recipes that cannot be imported"],
)
def test_what_cannot_be_derived_is_left_out_and_so_is_its_suite(upstream, tmp_path, upstreams_code, reason):
    release, bridge = upstream
    utils, metadata = bridge / "scripts/performance/utils/utils.py", release / "tiny/metadata.yaml"
    utils.write_text(utils.read_text() + upstreams_code)
    before = git(bridge, "rev-parse", "HEAD").strip()
    git(bridge, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", "b")
    metadata.write_text(metadata.read_text().replace(before, git(bridge, "rev-parse", "HEAD").strip()))
    (release / "exemplar.yaml").write_text(SUITE)
    printed = imported(release, tmp_path / "out")
    assert "left out: tiny " in printed
    assert reason in printed.replace("\n", " ")
    assert "exemplar.yaml, pretrain_tiny_one_7b fp8 on 16 gb200, is in no file that was imported" in printed
    assert list((tmp_path / "out").iterdir()) == []
