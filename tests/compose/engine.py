"""A Docker engine with Compose 2: that of this machine, or one that ends with the test."""

import lzma
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
DEBIAN = "http://deb.debian.org/debian"
STAND_INS = {
    "BASE_IMAGE": ("python:3.11-slim-bookworm", "python"),
    "POSTGRES_IMAGE": ("postgres:16-bookworm", "postgres"),
    "REDIS_IMAGE": ("redis:7.2-bookworm", "redis"),
}
"""By variable of docker-compose.yaml: the official image, and the target of Dockerfile in its place."""


class NoEngineError(Exception):
    """Neither is there a Docker engine, nor can one be started."""


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """Yield the environment in which `docker compose` works. Raises NoEngineError."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if _works(environment):
        yield environment
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoEngineError("no Docker engine with Compose 2 answers, and only root can start one on Debian")
    with tempfile.TemporaryDirectory(prefix="steptime-docker-") as name:
        folder = Path(name)
        packages = ["docker.io", "iptables", "debootstrap"]
        if not all(shutil.which(program) for program in ("dockerd", "iptables", "debootstrap")):
            subprocess.run(["apt-get", "update", "-qq"], check=True)
            quiet = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages]
            subprocess.run(quiet, check=True, stdout=subprocess.DEVNULL)
        environment |= {"DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_CONFIG": str(folder)}
        environment.pop("DOCKER_CONTEXT", None)
        _compose_plugin(folder)
        settings = ("data-root", "exec-root", "pidfile")
        options = [f"--{setting}={folder / setting}" for setting in settings]
        with (folder / "log").open("wb") as log:
            command = ["dockerd", *options, f"--host={environment['DOCKER_HOST']}"]
            daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 60
            while not _works(environment):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise NoEngineError(f"dockerd does not start: {(folder / 'log').read_text()[-1000:]}")
                time.sleep(0.5)
            yield environment
        finally:
            daemon.terminate()
            daemon.wait()


def _works(environment: dict[str, str]) -> bool:
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, check=False)
        except FileNotFoundError:
            return False
        if done.returncode:
            return False
    return True


def _compose_plugin(folder: Path) -> None:
    """Unpack Compose 2, which Debian 12 lacks, from Debian 13's package."""
    index = lzma.decompress(_get("dists/trixie/main/binary-amd64/Packages.xz")).decode()
    entry = next(entry for entry in index.split("\n\n") if entry.startswith("Package: docker-compose\n"))
    path = next(line for line in entry.splitlines() if line.startswith("Filename: ")).split()[1]
    package = folder / "compose.deb"
    package.write_bytes(_get(path))
    subprocess.run(["dpkg-deb", "--extract", package, folder / "unpacked"], check=True)
    (folder / "cli-plugins").symlink_to(folder / "unpacked/usr/libexec/docker/cli-plugins")


def _get(path: str) -> bytes:
    with urllib.request.urlopen(f"{DEBIAN}/{path}", timeout=60) as reply:  # noqa: S310 (an address of http)
        return bytes(reply.read())


def base_images(environment: dict[str, str]) -> dict[str, str]:
    """Return the images to start from, by variable: the official ones if they can be pulled."""

    def docker(*arguments: str) -> bool:
        return not subprocess.run(
            ["docker", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode

    if all(docker("image", "inspect", name) or docker("pull", name) for name, _ in STAND_INS.values()):
        return {variable: name for variable, (name, _) in STAND_INS.items()}
    if not docker("image", "inspect", "steptime-test/debian"):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name) / "root"
            bootstrap = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm"]
            subprocess.run([*bootstrap, root, DEBIAN], check=True, stdout=subprocess.DEVNULL)
            with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
                load = ["docker", "import", "-", "steptime-test/debian"]
                subprocess.run(load, env=environment, stdin=tar.stdout, check=True, stdout=subprocess.DEVNULL)
    for _, target in STAND_INS.values():
        build = [
            "docker",
            "build",
            "--quiet",
            f"--tag=steptime-test/{target}",
            f"--target={target}",
            str(HERE),
        ]
        subprocess.run(build, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {variable: f"steptime-test/{target}" for variable, (_, target) in STAND_INS.items()}
