"""Names of container images: those in the documents, others of the same grammar, and invalid ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.errors import UserError
from steptime.recipes.image import nemo_release, parse_image

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "stem", "enroot", "apptainer"),
    [
        (
            "nvcr.io/nvidia/nemo:25.04.01",
            "nvidia+nemo+25.04.01",  # as printed in the document of Nemotron-H
            "docker://nvcr.io#nvidia/nemo:25.04.01",
            "docker://nvcr.io/nvidia/nemo:25.04.01",
        ),
        ("nvidia/nemo:dev", "nvidia+nemo+dev", "docker://nvidia/nemo:dev", "docker://nvidia/nemo:dev"),
        ("ubuntu:24.04", "ubuntu+24.04", "docker://ubuntu:24.04", "docker://ubuntu:24.04"),
        (
            "localhost:5000/a/b/c:1_x.Y-z",
            "localhost+5000+a+b+c+1_x.Y-z",
            "docker://localhost:5000#a/b/c:1_x.Y-z",
            "docker://localhost:5000/a/b/c:1_x.Y-z",
        ),
        (
            f"nvcr.io/nvidia/nemo@{DIGEST}",
            f"nvidia+nemo+{DIGEST.replace(':', '+')}",
            f"docker://nvcr.io#nvidia/nemo@{DIGEST}",
            f"docker://nvcr.io/nvidia/nemo@{DIGEST}",
        ),
        (
            f"nvcr.io/nvidia/nemo:25.04@{DIGEST}",
            "nvidia+nemo+25.04",
            f"docker://nvcr.io#nvidia/nemo@{DIGEST}",
            f"docker://nvcr.io/nvidia/nemo@{DIGEST}",
        ),
    ],
)
def test_a_name_gives_file_and_address(name, stem, enroot, apptainer):
    image = parse_image(name)
    assert (image.file_stem, image.uri("#"), image.uri("/")) == (stem, enroot, apptainer)


HOSTILE = [
    *("", "nemo:", ":25.04", "a//b:1", "a/../b:1", "nvidia/nemo:../../x", "nvidia/nemo:-o"),
    *("-o:1", "--output=x:1", "nvidia/nemo:1 --output x", "nvidia/nemo:1\n", "\nnvidia/nemo:1"),
    *(
        "$(touch canary):1",
        "nemo:$(touch canary)",
        "nemo:`id`",
        "nemo:1;id",
        "nemo:1&&id",
        "nemo:1|id",
        "a'b:1",
    ),
    *(
        "user@nvcr.io#nvidia/nemo:1",
        "nvcr.io#nvidia/nemo:1",
        "docker://nvcr.io/nvidia/nemo:1",
        "/images/x.sqsh",
    ),
    *("NVIDIA/NEMO:1", "nvidia/nemö:1", "nvidia/nemo:٢", "nvidia/nemo:1\0", "nvidia/nemo:1@sha256:12"),
    *("nvidia/nemo:" + "1" * 129, "a/" * 150 + "b:1", "nvcr.io:port/nemo:1", "nvcr..io/nemo:1", "a,b:1"),
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_what_is_no_name_is_refused_in_one_line(name):
    with pytest.raises(UserError, match="is not a container image name: write registry/") as refused:
        parse_image(name)
    assert "\n" not in str(refused.value)
    assert "\0" not in str(refused.value)


def test_a_name_without_a_version_is_refused():
    with pytest.raises(UserError, match=r"'nvcr\.io/nvidia/nemo' names no version: add its tag"):
        parse_image("nvcr.io/nvidia/nemo")


@given(st.text(alphabet="aA0./:@_-+#$ \n", max_size=30))
def test_other_text_is_refused_or_gives_one_plain_file_name(text):
    try:
        stem = parse_image(text).file_stem
    except UserError:
        return
    assert re.fullmatch(r"[a-z0-9][A-Za-z0-9_.+-]*", stem)


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("nvcr.io/nvidia/nemo:25.04.01", (25, 4)),
        ("registry.example.org/copies/nemo:26.02", (26, 2)),
        ("nemo:25.11.nemotron", (25, 11)),
        ("registry.example.org/team/my-nemo:25.04", None),
        ("nvcr.io/nvidia/nemo-automodel:25.04", None),
        ("nvcr.io/nvidia/nemo:dev", None),
        ("nvcr.io/nvidia/nemo:25.041", None),
        (f"nvcr.io/nvidia/nemo@{DIGEST}", None),
    ],
)
def test_the_release_of_nemo_in_an_image(name, release):
    assert nemo_release(name) == release
