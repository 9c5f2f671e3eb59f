"""Names of container images, as written in workload files: `nvcr.io/nvidia/nemo:25.04.01`."""

import re

from steptime.errors import UserError, one_line
from steptime.frozen import Frozen

_REGISTRY = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*(?::[0-9]{1,5})?",
    re.ASCII,
)
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
"""The grammar of the distribution project's references (github.com/distribution/reference)."""
_DOCUMENTED_REGISTRY = "nvcr.io"
_LONGEST = 200
"""Most characters of an image's name: it becomes a file name, which may have 255."""

_IN_FILE_NAMES = str.maketrans("/:", "++")


class Image(Frozen):
    """A container image name, parsed."""

    registry: str | None
    """Registry, such as `nvcr.io`; None for Docker Hub."""
    repository: str
    """Repository, such as `nvidia/nemo`."""
    tag: str | None
    digest: str | None
    """`sha256:…` of the registry's manifest, if the name pins it."""

    @property
    def file_stem(self) -> str:
        """The image's file name without suffix, such as `nvidia+nemo+25.04.01`.

        It begins with the registry unless that is nvcr.io or Docker Hub.
        """
        registry = "" if self.registry in (None, _DOCUMENTED_REGISTRY) else f"{self.registry}/"
        return f"{registry}{self.repository}/{self.tag or self.digest}".translate(_IN_FILE_NAMES)

    def uri(self, separator: str) -> str:
        """Return the image as `docker://REGISTRY<separator>REPOSITORY:TAG`, or with `@DIGEST` if it has one.

        `separator` is what the importing program expects after the registry: `#` for enroot, else `/`.
        """
        registry = "" if self.registry is None else f"{self.registry}{separator}"
        version = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"docker://{registry}{self.repository}{version}"


def parse_image(text: str) -> Image:
    """Parse an image name. Raises UserError if it is invalid, or has neither tag nor digest.

    As in Docker, the first part is a registry if it has a dot or a port, or is `localhost`.
    """
    first, _, rest = text.partition("/")
    named_registry = bool(rest) and ("." in first or ":" in first or first == "localhost")
    match = _IMAGE.fullmatch(rest if named_registry else text)
    registry = first if named_registry else None
    if match is None or (registry is not None and not _REGISTRY.fullmatch(registry)) or len(text) > _LONGEST:
        raise UserError(
            f"image '{one_line(text)}' is not a container image name: "
            "write registry/repository:tag, like nvcr.io/nvidia/nemo:25.04.01."
        )
    if match["tag"] is None and match["digest"] is None:
        raise UserError(
            f"image '{text}' names no version: add its tag, like {text}:25.04.01, "
            "so that the run can be repeated."
        )
    return Image(registry=registry, repository=match["repository"], tag=match["tag"], digest=match["digest"])


FIRST_FOR_BRIDGE = (26, 2)
"""NVIDIA's images of NeMo from this release on are made for Megatron-Bridge, not for NeMo 2."""


def nemo_release(name: str) -> tuple[int, int] | None:
    """Return the year and month of an image of NeMo: (26, 2) for `nvcr.io/nvidia/nemo:26.02.01`.

    None for other images. A copy in another registry counts if its name ends in `nemo`.
    """
    image = parse_image(name)
    release = re.match(r"(\d\d)\.(\d\d)(?!\d)", image.tag or "")
    if release is None or image.repository.rpartition("/")[2] != "nemo":
        return None
    return int(release[1]), int(release[2])
