"""What a cluster's file permits runs to ask for: plans, commands and a DAG's first task refuse the rest."""

import pytest
from staged import staged_files
from typer.testing import CliRunner

from steptime import settings
from steptime.airflow.params import plan_from_params
from steptime.cli import app
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_spec
from steptime.errors import UserError
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest

SITE = """\
name: site
kind: slurm
gpu_type: h100
connection: site
container: pyxis
work_dir: /shared
account: of-the-file
extra_options: [--qos=of-the-file]
"""
LISTS = """\
permitted_variables: [NCCL_NET_PLUGIN, TRITON_*]
permitted_images: ["nvcr.io/nvidia/nemo:*", "*@sha256:00*"]
permitted_checkpoints: [/shared-too/*]
permitted_accounts: [llm, team-*]
permitted_partitions: [batch, debug]
permitted_qos: [normal]
"""
STAGED = staged_files(image_path="/x.sqsh")
LEADS_TO_CODE = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "PYTHONHOME", "PYTHONSTARTUP"),
    *("PYTHONUSERBASE", "PYTHONWARNINGS", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "CUDA_INJECTION64_PATH"),
    *("CC", "TRITON_CACHE_DIR", "ENROOT_CONFIG_PATH", "PYXIS_CONTAINER_MOUNTS", "HOME"),
    *("APPTAINERENV_LD_PRELOAD", "APPTAINER_BIND", "SINGULARITY_BIND"),
)
NEVER = (
    *("PATH", "PYTHONPATH", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "SLURM_CONF"),
    *("SBATCH_PARTITION", "SRUN_CONTAINER", "_SLURM_SPANK_OPTION_pyxis_container_mounts", "BASH_FUNC_x%%"),
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return the file of a Slurm cluster beside the shipped workloads."""
    for entry in settings.shipped("config").iterdir():
        if entry.name != "clusters":
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "clusters").mkdir()
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    file = tmp_path / "clusters" / "site.yaml"
    file.write_text(SITE)
    return file


def refusal(**options):
    """Return the refusal of a run by a DAG's first task, or an empty text if it is accepted."""
    try:
        workload = options.pop("workload", "llama3.1")
        plan_from_params(workload, {"cluster": "site", "size": "8b", "gpus": "8", **options})
    except UserError as error:
        return str(error)
    return ""


def test_variables_that_lead_to_code_are_refused_until_the_file_permits_them(site):
    for name in LEADS_TO_CODE:
        assert f"code-loading variable '{name}' is not permitted on cluster site" in refusal(
            environment={name: "/x"}
        ), name
    for name in NEVER:
        why = refusal(environment={name: "x"})
        refused = ("leave it out", "is not a variable name", "has no effect here")
        assert any(words in why for words in refused), name
    for name in ("NCCL_DEBUG", "NCCL_IB_HCA", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "HF_HOME"):
        assert refusal(environment={name: "x"}) == "", name
    site.write_text(f"{SITE}permitted_variables: ['*']\n")
    for name in LEADS_TO_CODE:
        assert refusal(environment={name: "/x"}) == "", name
    for name in NEVER:
        assert refusal(environment={name: "x"}), f"{name} is the script's own"


def test_a_list_has_patterns_and_none_permits_all(site):
    options = (
        {"environment": {"NCCL_TUNER_PLUGIN": "x"}},
        {"image": "docker.io/somebody/else:1"},
        {"image": "nvcr.io/nvidia/nemo-lookalike:25.02.01"},
        {"load_checkpoint": "/sharedfolder/checkpoint", "gpus": "16"},
        {"account": "finance"},
        {"additional_slurm_params": "account=finance"},
        {"partition": "batch,gold"},
        {"additional_slurm_params": "qos=high"},
    )
    permitted = (
        {},
        {"environment": {"NCCL_NET_PLUGIN": "none", "TRITON_CACHE_DIR": "/x"}},
        {"image": "nvcr.io/nvidia/nemo:25.04.01"},
        {"image": f"somebody/else@sha256:{'0' * 64}"},
        {"load_checkpoint": "/shared/experiments/checkpoint", "gpus": "16"},
        {"load_checkpoint": "/shared-too/checkpoint", "gpus": "16"},
        {"account": "team-a", "partition": "batch,debug", "additional_slurm_params": "qos=normal"},
    )
    for values in options[1:]:
        assert refusal(**values) == "", values
    site.write_text(SITE + LISTS)
    for values in options:
        assert "is not permitted on cluster site" in refusal(**values), values
    for values in permitted:
        assert refusal(**values) == "", values
    assert refusal(partition="batch,gold") == (
        "partition 'gold' is not permitted on cluster site: leave it out, or have it added to "
        "permitted_partitions in config/clusters/site.yaml, which has batch, debug."
    )


def test_a_run_may_take_all_gpus_that_jobs_may_hold(site):
    site.write_text(f"{SITE}gpus: 8\n")
    assert refusal() == ""
    site.write_text(f"{SITE}gpus: 7\n")
    assert "needs 8 GPUs, but jobs on cluster site may hold at most 7 together" in refusal()


def test_the_image_of_the_recipe_is_held_to_the_list_too(site):
    site.write_text(f"{SITE}permitted_images: ['registry.site/*']\n")
    assert "image 'nvcr.io/nvidia/nemo:25.02.01' is not permitted on cluster site" in refusal()
    assert refusal(image="registry.site/nemo:1") == ""


def test_a_runai_cluster_runs_images_though_its_file_names_no_container(site):
    site.write_text(
        "name: site\nkind: runai\ngpu_type: h100\nconnection: site\nimage: registry.site/bash:1\n"
        "work_dir: /shared\npvcs: [{claim: work, path: /shared}]\n"
    )
    assert refusal(image="registry.site/nemo:1") == ""


@pytest.mark.parametrize("command", [("plan",), ("plan", "--show-script"), ("run", "--dry-run"), ("run",)])
def test_every_command_that_plans_refuses(site, command):
    """`run` refuses before it contacts Airflow, which does not run here."""
    site.write_text(SITE + LISTS)
    options = ["llama3.1", "--cluster", "site", "--size", "8b", "--gpus", "8", "--account", "finance"]
    done = CliRunner().invoke(app, [command[0], *options, *command[1:]])
    assert isinstance(done.exception, UserError)
    assert "account 'finance' is not permitted on cluster site" in str(done.exception)


def test_a_job_is_not_made_of_a_run_that_got_past_the_checks(site):
    """The run was planned before the cluster's file was changed."""
    run = plan(
        PlanRequest.model_validate({"workload": "llama3.1", "cluster": "site", "account": "finance"})
    ).runs[0]
    job_spec(run, STAGED, load_cluster("site"), identity="x", started=1)
    site.write_text(SITE + LISTS)
    with pytest.raises(UserError, match="account 'finance' is not permitted"):
        job_spec(run, STAGED, load_cluster("site"), identity="x", started=1)


def test_variables_of_a_run_mount_no_folder_that_the_file_does_not(site):
    def refused(**variables):
        return refusal(workload="gpt-oss-26.02", size=None, gpus=None, environment=variables)

    assert "the Hugging Face hub's cache to '/home/someone/hub'" in refused(HF_HOME="/home/someone")
    assert "cache to '/home/someone'" in refused(HF_HUB_CACHE="/home/someone")
    assert "cache to '/shared/../etc'" in refused(HF_HUB_CACHE="/shared/../etc")
    assert refused(HF_HUB_CACHE="/shared/hub") == ""
    site.write_text(f"{SITE}container_mounts: ['/home/someone:ro']\n")
    assert refused(HF_HOME="/home/someone") == ""
    site.write_text(f"{SITE}environment: {{HF_HOME: /home/someone}}\n")
    assert refused(NCCL_DEBUG="INFO") == "", "its author knows"


@pytest.mark.long
def test_an_owner_has_its_own_account_and_no_other(site):
    options = {"cluster": "site", "size": "8b", "gpus": "8"}

    def account_of(owner, **more):
        planned = plan_from_params("llama3.1", {**options, **more}, owner=owner)
        return planned.runs[0].cluster_options.get("account")

    site.write_text(f"{SITE}owner_accounts: {{llm-team: llm, vision-team: vision}}\n")
    assert account_of("llm-team") == "llm"
    assert account_of("vision-team", account="vision") == "vision"
    with pytest.raises(
        UserError, match="account 'llm' is not the account of DAG owner 'vision-team' on cluster site"
    ):
        account_of("vision-team", account="llm")
    with pytest.raises(UserError, match="keep one of the two"):
        account_of("vision-team", additional_slurm_params="account=llm")
    with pytest.raises(
        UserError, match=r"DAG owner 'airflow' has no account on cluster site: .*llm-team, vis"
    ):
        account_of("airflow")
    site.write_text(f"{SITE}permitted_owners: ['llm-*']\n")
    assert account_of("llm-team") is None
    with pytest.raises(UserError, match="DAG owner 'airflow' is not permitted on cluster site"):
        account_of("airflow")
