"""A Docker engine with Compose 2: that of this machine, or one that ends with the test."""

import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
DEBIAN = "http://deb.debian.org/debian"
STAND_INS = {
    "BASE_IMAGE": ("python:3.11-slim-bookworm", "python"),
    "POSTGRES_IMAGE": ("postgres:16-bookworm", "postgres"),
    "REDIS_IMAGE": ("redis:7.2-bookworm", "redis"),
    "NGINX_IMAGE": ("nginx:1.28", "nginx"),
}
"""By variable of docker-compose.yaml: the official image, and the target of Dockerfile to build instead."""


class NoEngineError(Exception):
    """There is no Docker engine, and none can be started, or no image can be made for it."""


@contextmanager
def engine():
    """Yield the environment in which `docker compose` works. Raises NoEngineError; SIGTERM is an exit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the containers, and an engine of our own
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if _works(environment):
        yield environment
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoEngineError("no Docker engine with Compose 2 answers, and only root can start one on Debian")
    with tempfile.TemporaryDirectory(prefix="steptime-docker-") as name:
        folder = Path(name)
        environment |= {"DOCKER_HOST": f"unix://{folder}/docker.sock", "DOCKER_CONFIG": str(folder)}
        environment.pop("DOCKER_CONTEXT", None)
        try:
            _install(folder)
        except (OSError, lzma.LZMAError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", None) or str(error)
            raise NoEngineError(f"Debian's packages cannot be installed: {told.strip()}") from None
        settings = ("data-root", "exec-root", "pidfile")
        options = [f"--{setting}={folder / setting}" for setting in settings]
        with (folder / "log").open("wb") as log:
            command = ["dockerd", *options, f"--host={environment['DOCKER_HOST']}"]
            # In its own session, so that Ctrl-C lets the test stop its containers first.
            daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
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
            # A container on the host's network leaves this mount, and a folder with one cannot be removed.
            for namespace in (folder / "exec-root/netns").glob("*"):
                subprocess.run(["umount", str(namespace)], check=False)


def _works(environment):
    for command in (["docker", "info"], ["docker", "compose", "version"], ["docker", "buildx", "version"]):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, check=False)
        except FileNotFoundError:
            return False
        if done.returncode:
            return False
    return True


def _install(folder):
    """Install the engine, and unpack docker's plugins, which Debian 12 lacks, from Debian 13's packages."""

    def run(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    if not all(shutil.which(program) for program in ("docker", "dockerd", "iptables", "debootstrap")):
        run("apt-get", "update", "-qq")
        packages = ("docker.io", "iptables", "debootstrap")
        run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages)
    architecture = run("dpkg", "--print-architecture").strip()
    index = lzma.decompress(_get(f"dists/trixie/main/binary-{architecture}/Packages.xz")).decode()
    for name in ("docker-compose", "docker-buildx"):
        entry = index.partition(f"\nPackage: {name}\n")[2].partition("\n\n")[0]
        path = entry.partition("\nFilename: ")[2].partition("\n")[0]
        package = folder / f"{name}.deb"
        package.write_bytes(_get(path))
        run("dpkg-deb", "--extract", str(package), str(folder / "unpacked"))
    (folder / "cli-plugins").symlink_to(folder / "unpacked/usr/libexec/docker/cli-plugins")


def _get(path):
    with urllib.request.urlopen(f"{DEBIAN}/{path}", timeout=60) as reply:  # noqa: S310 (an address of http)
        return bytes(reply.read())


def make_image(image, environment, release, *, options, source=(DEBIAN,)):
    """Make an image of a release by debootstrap. Raises NoEngineError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        # It mounts /proc and /sys: in namespaces that end with it, so that nobody else's files are removed.
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command = [*own, "debootstrap", "--variant=minbase", *options, release, root, *source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            told = done.stderr or done.stdout[-1000:]
            raise NoEngineError(f"debootstrap cannot make a {release}: {told}")
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
            load = ["docker", "import", "-", image]
            subprocess.run(load, env=environment, stdin=tar.stdout, check=True, stdout=subprocess.DEVNULL)


def base_images(environment):
    """Return the base image for each variable: the official ones if all can be pulled, else own builds."""

    def docker(*arguments):
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
        make_image("steptime-test/debian", environment, "bookworm", options=["--include=ca-certificates"])
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
