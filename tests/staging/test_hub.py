"""Files that a run needs from the Hugging Face hub: found in a real local cluster's cache, or refused."""

import json
import shlex
from pathlib import Path

import pytest
from named_runs import IN_IMAGE

from steptime.clusters.hub import fetch_command, hub_cache
from steptime.clusters.jobscript import job_environment
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.errors import UserError
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.stage import require_hub_files, stage

COMMIT = "0123456789" * 4
SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"
NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def planned(workload="nemotron3-26.04", **values):
    (run,) = plan(PlanRequest.model_validate({"workload": workload, "gpu_type": "gb300", **values})).runs
    return run


def here(tmp_path, **environment):
    fields = {"name": "here", "kind": "local", "gpu_type": "gb300", "slots": 64, "container": "bwrap"}
    return LocalConfig.model_validate(
        {**fields, "work_dir": str(tmp_path / "work"), "environment": environment}
    )


@pytest.fixture
async def cluster(tmp_path):
    async with LocalCluster(here(tmp_path)) as cluster:
        yield cluster


def cached(hub, repository, *names, commit=COMMIT):
    """Lay out a repository as huggingface_hub does, where files are links to blobs."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for name in names:
        (folder / "blobs" / name).write_text("{}")
        (folder / "snapshots" / commit / name).symlink_to(f"../../blobs/{name}")


async def test_a_run_is_refused_until_everything_is_there(cluster, tmp_path):
    """The refusal comes before any staging: which file, where it was looked for, and how to get it."""
    config, run, said = here(tmp_path), planned(size="super"), list[str]()
    hub = tmp_path / "work" / "huggingface" / "hub"
    for repository, name in ((SUPER, "config.json"), (NANO, "tokenizer_config.json")):
        cached(hub, repository, "README.md")
        with pytest.raises(UserError) as refused:
            await stage(cluster, config, run, said.append)
        assert str(refused.value).startswith(
            f"super·fp8_mx·64 needs {name} of {repository} from the Hugging Face hub, and {hub} on cluster "
            "here does not have it. "
        )
        assert fetch_command(repository, str(hub)) in str(refused.value)
        cached(hub, repository, name)
    await require_hub_files(cluster, config, run)
    assert not said


@pytest.mark.parametrize("lacks", ["refs/main", f"snapshots/{COMMIT}/config.json", "blobs/config.json"])
async def test_what_is_there_in_part_does_not_count(lacks, cluster, tmp_path):
    hub = tmp_path / "hub"
    config, run = here(tmp_path, HF_HUB_CACHE=str(hub)), planned("kimi-k2")
    cached(hub, "moonshotai/Kimi-K2-Instruct", "config.json")
    await require_hub_files(cluster, config, run)
    (hub / "models--moonshotai--Kimi-K2-Instruct" / lacks).unlink()
    with pytest.raises(UserError, match=r"needs config\.json of moonshotai/Kimi-K2-Instruct"):
        await require_hub_files(cluster, config, run)


@pytest.mark.parametrize(
    ("of_cluster", "of_run", "folder"),
    [
        ({}, {}, "work/huggingface/hub"),
        ({"HF_HOME": "/hf"}, {}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/cache"}, {}, "/cache"),
        ({"HF_HUB_CACHE": "/cache"}, {"HF_HUB_CACHE": "/mine"}, "/mine"),
        ({"HF_HUB_OFFLINE": "0"}, {}, None),
        ({"HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": "1"}, "work/huggingface/hub"),
    ],
)
def test_jobs_read_the_sites_cache_offline_unless_it_wants_them_online(of_cluster, of_run, folder, tmp_path):
    config, run = here(tmp_path, **of_cluster), planned("kimi-k2", environment=of_run)
    cache = None if folder is None else str(tmp_path / folder)
    assert hub_cache(run, config.environment, config.root) == cache
    environment = job_environment(run, IN_IMAGE, config)
    if cache is None:
        assert (environment["HF_HUB_OFFLINE"], "HF_HUB_CACHE" in environment) == ("0", False)
    else:
        assert (environment["HF_HUB_CACHE"], environment["HF_HUB_OFFLINE"]) == (cache, "1")
        assert environment["TRANSFORMERS_OFFLINE"] == "1"
        assert any(Path(cache).is_relative_to(mount.folder) for mount in config.mounts(run))


def test_the_command_that_fetches_is_one_line_of_shell():
    folder = '/a "b"/$(c)'
    program, option, code = shlex.split(fetch_command("openai/gpt-oss-120b", folder))
    assert (program, option) == ("python3", "-c")
    assert f"cache_dir={json.dumps(folder)}" in code
    compile(code, "command", "exec")
