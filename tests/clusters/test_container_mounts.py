"""Which folders a job in a container may write to, in real containers of bwrap."""

import os
from pathlib import Path

import pytest
from called import captured
from staged import staged_files

from steptime.clusters.containers import mount_points, mounts
from steptime.clusters.jobscript import job_spec
from steptime.clusters.local.cluster import LocalConfig
from steptime.errors import UserError

TRIES_TO_WRITE = """#!/bin/sh
# Also after asking the kernel for the right to: a job of root's could.
mount -o remount,rw,bind "$WORK" 2>/dev/null
for folder in $FOLDERS; do
  (: >"$folder/written") 2>/dev/null && echo "$folder"
done
exit 0
"""


def written(run, work, site, *folders):
    """Return in which of the folders a job in a container of bwrap could write; `.` is its own folder."""
    for folder in (work / "tools", *folders):
        folder.mkdir(parents=True, exist_ok=True)
    python = work / "tools" / "python"
    python.write_text(TRIES_TO_WRITE)
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    staged = staged_files(
        trainer_path=work / "trainer",
        image="nvcr.io/nvidia/nemo:25.04.01",
        image_path="/",
        image_environment={
            "PATH": path,
            "WORK": str(work),
            "FOLDERS": " ".join(map(str, (".", "/tmp", *folders))),  # noqa: S108
        },
    )
    told = {"name": "here", "kind": "local", "gpu_type": "cpu", "container": "bwrap", "work_dir": str(work)}
    config = LocalConfig.model_validate({**told, "container_mounts": site})
    spec = job_spec(run, staged, config, identity="x", started=1_790_000_000)
    Path(spec.directory).mkdir(parents=True)
    done = captured(["/bin/bash", "-c", spec.script], env={"PATH": path})
    assert done.returncode == 0, done.stderr
    assert (Path(spec.directory) / "written").exists()
    return set(done.stdout.split())


def test_a_job_writes_into_its_own_folder_and_those_of_the_site(bwrap, make_result, tmp_path):
    work, site, archive = tmp_path / "work", tmp_path / "site", tmp_path / "archive"
    others = (
        *(work / "trainer", work / "images", work / "venvs", work / "clusters" / "here" / "jobs"),
        *(work / "experiments" / "another" / "run", site / "read", archive / "saved"),
    )
    run = make_result().run.model_copy(update={"checkpoint_path": str(archive / "saved")})
    mine = (site / "write", work / "shared-cache")
    mounted = (str(site / "write"), f"{site / 'read'}:ro", str(work / "shared-cache"))
    found = written(run, work, mounted, *others, *mine)
    assert found == {".", "/tmp", *map(str, mine)}  # noqa: S108
    assert not list(archive.rglob("written"))


def test_outer_folders_are_mounted_before_those_in_them():
    found = mounts("/lustre/team/steptime", ("/lustre", "/data:ro"), ("/archive/saved", None, "/data/hub"))
    assert [(mount.folder, mount.writable) for mount in found] == [
        *(("/lustre", True), ("/data", False), ("/archive/saved", False), ("/lustre/team/steptime", False))
    ]
    assert mounts("/work", ("/work",))[0].writable, "the site's file says so"
    assert {"/lustre", "/data", "/tmp"} < set(mount_points(found))  # noqa: S108


@pytest.mark.parametrize("checkpoint", ["/", "/shared", "/shared/"])
def test_a_checkpoint_that_holds_everything_is_refused(checkpoint):
    """Mounting it would show a job files that its cluster's file does not."""
    with pytest.raises(UserError, match="contains the cluster's work_dir '/shared/work'"):
        mounts("/shared/work", (), (checkpoint,))
