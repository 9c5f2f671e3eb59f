"""The options in the documents: what they change in a run, and which combinations are refused."""

import shutil

import pytest

from steptime import settings
from steptime.errors import UserError
from steptime.recipes.models import Mode, ProfileWindow
from steptime.recipes.planning import parse_request, plan

NAMED = "/shared/checkpoints/default--None=0.0000-epoch=0-consumed_samples=12800.0"
SAVED_320 = "/shared/default--None=0.0000-epoch=0-consumed_samples=320.0-last"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the shipped configuration with two Slurm clusters: H100s with containers, and CPUs without.

    No test changes it, because in folders of their own all would read every workload again.
    """
    folder = tmp_path_factory.mktemp("options") / "config"
    shutil.copytree(settings.shipped("config"), folder)
    for name, gpu_type, container in (("eos", "h100", "pyxis"), ("nodes", "cpu", "none")):
        (folder / "clusters" / f"{name}.yaml").write_text(
            f"name: {name}\nkind: slurm\ngpu_type: {gpu_type}\ncontainer: {container}\nwork_dir: /shared\n"
            f"connection: {name}\n"
        )
    return folder


@pytest.fixture(autouse=True)
def clusters(config, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))


def planned(workload="llama3.1", **values):
    return plan(parse_request({"workload": workload, **values}))


def run_of(workload="llama3.1", **values):
    (run,) = planned(workload, **values).all_runs
    return run


@pytest.mark.parametrize(
    ("values", "max_steps", "window", "profile"),
    [
        ({"workload": "llama3.1", "size": "8b"}, 25, "24:24", (20, 25)),
        ({"workload": "nemotron4-340b", "gpu_type": "gb200"}, 50, "35:44", (45, 50)),
        ({"workload": "nemotron4-340b-24.11", "size": "340b"}, 50, "49:49", (20, 30)),
        # If the document ends the run with the profile, another profile ends it as well.
        ({"workload": "llama3.1", "size": "8b", "profile_start": 5, "profile_stop": 8}, 8, "7:7", (5, 8)),
        ({"workload": "nemotron4-340b-24.11", "size": "340b", "profile_stop": 60}, 60, "59:59", (20, 60)),
    ],
)
def test_a_profile_is_the_documents_where_nothing_else_is_said(values, max_steps, window, profile):
    run = run_of(profile=True, **values)
    assert (run.mode, run.max_steps, str(run.window)) == (Mode.PROFILE, max_steps, window)
    assert run.profile is not None
    assert (run.profile.first_step, run.profile.last_step) == profile
    assert run.profile.ranks == tuple(range(8))
    assert run.experiment.endswith("_nsys")


@pytest.mark.parametrize(
    ("values", "default"), [({"gpus": "2"}, False), ({"size": "8b", "gpu_type": "h100", "gpus": "16"}, True)]
)
@pytest.mark.parametrize(
    ("setting", "mode"), [("async_save", {"save_checkpoint": True}), ("gpu_samples", {})]
)
def test_a_setting_that_is_on_for_gpus_may_be_turned_on_and_off(setting, mode, values, default):
    assert getattr(run_of(**mode, **values).settings, setting) == default
    for wanted in (True, False):
        assert getattr(run_of(**mode, **values, **{setting: wanted}).settings, setting) == wanted


def test_ranks_and_gpu_metrics_of_a_profile():
    run = run_of(size="8b", gpus="16", profile=True, profile_ranks="8-10, 0", gpu_metrics=True)
    expected = ProfileWindow(first_step=20, last_step=25, ranks=(0, 8, 9, 10), gpu_metrics=True)
    assert run.profile is not None
    assert run.profile.model_copy(update={"nsight": expected.nsight}) == expected


def test_an_nccl_trace_is_short():
    run = run_of("nemotron-h", gpu_type="h100", nccl_trace=True)
    assert (run.mode, run.max_steps, str(run.window), run.time_limit_s) == (Mode.NCCL_TRACE, 5, "4:4", 900)
    assert run.experiment.endswith("_nccltrace")


def test_a_checkpoint_is_saved_alone():
    runs = planned(size="8b", gpus="16,32", save_checkpoint=True).all_runs
    assert [(run.mode, run.recipe.gpus, run.max_steps) for run in runs] == [
        (Mode.CHECKPOINT_SAVE, 16, 50),
        (Mode.CHECKPOINT_SAVE, 32, 50),
    ]


@pytest.mark.parametrize(
    ("path", "values", "first_step"),
    [
        (NAMED, {"size": "8b", "gpus": "16"}, 50),  # 12,800 samples, 256 in a step
        (SAVED_320, {"gpus": "2"}, 20),
        ("/shared/checkpoints/saved", {"size": "8b", "gpus": "16"}, 50),
        ("/shared/checkpoints/saved", {"gpus": "2", "max_steps": 7}, 7),
    ],
)
def test_a_checkpoint_is_loaded_alone(path, values, first_step):
    run = run_of(load_checkpoint=path, **values)
    assert (run.mode, run.checkpoint_path) == (Mode.CHECKPOINT_LOAD, path)
    assert (run.first_step, run.max_steps) == (first_step, first_step + 1)
    assert str(run.window) == f"{first_step}:{first_step}"


def test_the_options_of_slurm():
    run = run_of(
        size="8b",
        cluster="eos",
        gpus="16",
        gpus_per_node=4,
        gres=False,
        partition="batch,debug",
        account="llm",
        segment=2,
        additional_slurm_params="nodelist=node[001-004],login1; constraint=gpu&memory ;exclusive;",
    )
    assert run.cluster_options == {
        "gpus_per_node": 4,
        "gres": False,
        "partition": "batch,debug",
        "account": "llm",
        "segment": 2,
        "nodelist": "node[001-004],login1",
        "additional_slurm_params": "constraint=gpu&memory;exclusive",
    }
    assert run.account == "llm"


def test_graphs_and_overlap_are_on_off_or_the_recipes():
    recipes = run_of(size="70b").performance.trainer
    options = {"cuda_graphs": not recipes.cuda_graphs, "tp_comm_overlap": not recipes.tp_comm_overlap}
    assert run_of(size="70b", **options).performance.trainer == recipes.model_copy(update=options)


@pytest.mark.parametrize(
    "values",
    [
        {"size": "8b", "profile": True, "profile_ranks": "0-3"},
        {"workload": "nemotron-h", "gpu_type": "h100", "nccl_trace": True},
        {"size": "8b", "gpus": "16", "load_checkpoint": NAMED},
        {"gpus": "1,2", "save_checkpoint": True},
        {"size": "8b", "cluster": "eos", "additional_slurm_params": "qos=high", "gres": False},
    ],
)
def test_a_request_with_its_defaults_means_the_same(values):
    made = planned(**values)
    assert plan(made.request) == made


SLURM = {"size": "8b", "cluster": "eos"}

REFUSALS = [
    (
        {"profile": True, "nccl_trace": True},
        "`profile` and `nccl_trace` cannot be in one request: keep one of them, and leave the others out.",
    ),
    ({"async_save": True}, "`async_save` needs `checkpoint` or `save_checkpoint`: ask for that too"),
    ({"profile_start": 0}, "`profile_start` needs `profile`: ask for that too, or leave `profile_start` out"),
    (
        {"profile": True, "gpus": "2", "gpu_metrics": True},
        "`gpu_metrics` needs GPUs, and this run is on the CPU",
    ),
    (
        {"profile": True, "profile_start": 25},
        "profiling from step 25 to step 25 cannot be in a run of 25 steps",
    ),
    ({"profile": True, "gpus": "2", "profile_ranks": "0-7"}, "a run on 2 GPUs has the ranks 0 to 1: name"),
    (
        {"profile": True, "gpus": "4", "profile_ranks": "0-3,3"},
        "`profile_ranks` '0-3,3' name rank 3 twice: name each once.",
    ),
    (
        {"workload": "nemotron4", "nccl_trace": True},
        "has no settings for an NCCL trace; workloads that have them: llama3.1-25.04, nemotron-h-25.05.",
    ),
    (
        {"size": "8b", "gpus": "8", "save_checkpoint": True},
        "is tested on 16 GPUs or more, not on 8: ask for one of these `gpus`: 16, 32, 64",
    ),
    ({"load_checkpoint": "/x"}, "`load_checkpoint` needs a single number of GPUs: name one of 1, 2 as"),
    (
        {"gpus": "2", "load_checkpoint": "x"},
        "`load_checkpoint` 'x' is not a folder on a cluster: write its absolute",
    ),
    ({"gpus": "2", "load_checkpoint": "/a-consumed_samples=0"}, "which is not a whole number of steps"),
    (
        {"gpus": "2", "load_checkpoint": SAVED_320, "max_steps": 21},
        "was saved at step 20, and `max_steps` is",
    ),
    ({"gpus": "2", "load_checkpoint": "/a\nb"}, r"`load_checkpoint` '/a\nb' is not a folder on a cluster"),
    (
        {"gpus": "2", "load_checkpoint": "/x", "window": "1:2"},
        "`window` '1:2' is not for runs with `load_checkpoint`",
    ),
    ({"cuda_graphs": True}, "`cuda_graphs` is for GPUs, and llama3.1-25.04 tiny on cpu has none"),
    ({"size": "8b", "tp_comm_overlap": True}, "`tp_comm_overlap` needs tensor parallelism"),
    (
        {"partition": "batch"},
        "`partition` is for Slurm clusters, and 'local' is of kind local: leave it out, or name",
    ),
    ({**SLURM, "gpus": "16", "gpus_per_node": 3}, "16 GPUs are not a multiple of `gpus_per_node` 3"),
    ({**SLURM, "partition": "a b"}, "`partition` 'a b' cannot be given to Slurm: write a name"),
    (
        {**SLURM, "nodelist": "/etc/passwd"},
        "`nodelist` '/etc/passwd' cannot be given to Slurm: write nodes as in",
    ),
    (
        {**SLURM, "additional_slurm_params": "job-name=x"},
        "'job-name' cannot be given, because steptime needs it to submit",
    ),
    (
        {**SLURM, "additional_slurm_params": "nodes=3"},
        "'nodes' is set by steptime: use the option `gpus` instead.",
    ),
    (
        {**SLURM, "additional_slurm_params": "constrant=x"},
        "'constrant' of `additional_slurm_params`: did you mean 'con",
    ),
    (
        {**SLURM, "additional_slurm_params": "qos=a;qos=b"},
        "`additional_slurm_params` has 'qos' twice: keep one.",
    ),
    (
        {**SLURM, "partition": "a", "additional_slurm_params": "partition=b"},
        "`partition` is also in `additional_slurm_params`: keep one of the two.",
    ),
    ({**SLURM, "image": "no image"}, "image 'no image' is not a container image name"),
]


JUST_POSSIBLE = [
    {"profile": True, "gpus": "2", "profile_ranks": "1"},
    {"profile": True, "profile_start": 24},
    {"profile": True, "profile_start": 0, "profile_stop": 1},
    {"profile": True, "max_steps": 25},
    {"profile": True, "gpus": "2", "gpu_metrics": False},
    {"profile": True, "size": "8b", "gpu_metrics": True},
    {"gpus": "2", "load_checkpoint": SAVED_320, "max_steps": 20},
    {"gpus": "2", "load_checkpoint": f"/{'a' * 999}"},
    {"gpus": "2", "load_checkpoint": "/a/..b/c..d"},
    {"size": "8b", "gpus": "16", "save_checkpoint": True},
    {"size": "405b", "gpus": "512", "save_checkpoint": True},
    {"size": "405b", "gpus": "1024", "load_checkpoint": "/x"},
    {"gpus": "2", "window": "19:19"},
    {"checkpoint": True, "async_save": True},
    {**SLURM, "gpus": "8", "gpus_per_node": 16},
    {**SLURM, "gpus": "16", "gpus_per_node": 16},
    {"size": "70b", "tp_comm_overlap": True},
    {"size": "8b", "tp_comm_overlap": False, "cuda_graphs": False},
]
"""Requests just inside the limits that are refused above."""


def test_what_is_just_possible_is_planned():
    refused = []
    for values in JUST_POSSIBLE:
        try:
            planned(**values)
        except UserError as error:
            refused.append(f"{values}: {error}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(("values", "complaint"), REFUSALS, ids=[complaint[:60] for _, complaint in REFUSALS])
def test_what_cannot_be_is_refused_in_one_sentence(values, complaint):
    with pytest.raises(UserError) as refusal:
        planned(**values)
    assert complaint in str(refusal.value)
    assert str(refusal.value).isprintable()
