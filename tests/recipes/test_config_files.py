"""Broken config files: each is refused in one sentence with file, line and field."""

import re
import sys
from typing import Literal, Self

import pytest
from pydantic import PositiveInt, model_validator

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.recipes.cluster_files import read_cluster_file
from steptime.recipes.config_files import FieldError, load_yaml_model
from steptime.recipes.sweeps import load_sweep
from steptime.recipes.trials import load_trial
from steptime.recipes.workloads import load_workload


@pytest.fixture
def usual_recursion_limit():
    """Set Python's recursion limit to its default, which Hypothesis raises for other tests."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


class Wheel(Frozen):
    radius: PositiveInt
    position: Literal["front", "rear"]


class Cart(Frozen):
    name: str
    load: float = 0.0
    wheels: tuple[Wheel, ...]
    spare: dict[str, int]

    @model_validator(mode="after")
    def _load_named(self) -> Self:
        if self.load > 10:
            raise FieldError("is too heavy", "load")
        return self


GOOD = """\
name: hand cart
load: 3
wheels:
  - {radius: 20, position: front}
  - radius: 30
    position: rear
spare: {16: 1}
"""


def _file(folder, text):
    path = folder / "cart.yaml"
    path.write_text(text)
    return path


def test_reads_lists_as_tuples_and_keys_as_text(tmp_path):
    cart = load_yaml_model(_file(tmp_path, GOOD), Cart)
    assert cart.wheels[1] == Wheel(radius=30, position="rear")
    assert cart.load == 3.0
    assert cart.spare == {"16": 1}


@pytest.mark.parametrize("key", ["on", "no", "010", "25.10", "1:30", "2026-11-30", "null", "~", "0x10", ".5"])
def test_a_key_is_what_is_written(tmp_path, key):
    assert load_yaml_model(_file(tmp_path, GOOD.replace("16", key)), Cart).spare == {key: 1}
    wrong = GOOD.replace("16: 1", f"{key}: x")
    with pytest.raises(UserError, match=re.escape(f"line 7, spare.{key}: has to be a whole number")):
        load_yaml_model(_file(tmp_path, wrong), Cart)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("radius: 30", "radius: -30", "line 5, wheels.1.radius: has to be above 0, not -30"),
        ("radius: 30", "radios: 30", "line 5, wheels.1.radios: unknown field, perhaps 'radius' is meant"),
        ("load: 3", "lode: 3", "line 2, lode: unknown field, perhaps 'load' is meant."),
        ("load: 3", "load: 3\nload: 4", "cart.yaml, line 3, load: is given twice; keep one."),
        ("name: hand cart", "name: 1:30:00", "line 1, name: 1:30:00 is a number in base 60"),
        ("name: hand cart", "name: [a", "cart.yaml, line 2: is not valid YAML"),
        (
            "name: hand cart",
            "name: [a, --gpus={b}]",
            "In brackets, a text with a brace or a comma needs quotes.",
        ),
        ("name: hand cart\n", "", "line 1, name: is missing."),
        ("load: 3", "load: \0", "cart.yaml: is not valid YAML: unacceptable character #x0000"),
        ("load: 3", "load: .NaN", "line 2, load: has to be a finite number, not .NaN."),
        ("load: 3", "load: -010", "line 2, load: -010 is a number in base 8 to YAML"),
        ("load: 3", "load: null", "line 2, load: has to be a number, not null."),
        ("name: hand cart", "name: no", "line 1, name: has to be text, not false (put it in quotes)."),
        (
            "    position",
            "\tposition",
            "yaml, line 6: is not valid YAML: it begins with a tab: write blanks.",
        ),
        ("load: 3", "load:\n\t- 3", "yaml, line 3: is not valid YAML: it begins with a tab: write blanks."),
    ],
)
def test_names_line_and_field(tmp_path, old, new, complaint):
    path = _file(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UserError) as refusal:
        load_yaml_model(path, Cart)
    assert str(refusal.value).startswith(str(path))
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", r"cart\.yaml: is empty\.$"),
        (b"- 1\n", "line 1, top level"),
        (None, r"cart\.yaml: there is no such file"),
        ("name: für".encode("latin-1"), r"cart\.yaml, line 1: is not in UTF-8: save it in that encoding\.$"),
        ("name: cart\nload: über".encode("latin-1"), r"cart\.yaml, line 2: is not in UTF-8"),
        ("name: cart".encode("utf-16"), r"cart\.yaml, line 1: is not in UTF-8"),
        (b"name: &name [*name]", "a value cannot be read as a string, number, .*: Circular reference"),
        # From Python 3.12 on the file is read, and pydantic refuses the value.
        (
            b"name: " + b"[" * 3000 + b"]" * 3000,
            "a value cannot be read as .*: maximum recursion depth|line 1.*: recursion limit exceeded",
        ),
    ],
)
@pytest.mark.usefixtures("usual_recursion_limit")
def test_what_is_no_mapping_at_all(tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "cart.yaml").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        load_yaml_model(tmp_path / "cart.yaml", Cart)


def test_the_first_fifty_mistakes_are_told_and_how_many_there_are_beyond(tmp_path):
    for wrong in (50, 51, 53):
        spare = "".join(f"  n{number}: x\n" for number in range(wrong))
        with pytest.raises(UserError) as refusal:
            load_yaml_model(_file(tmp_path, GOOD.replace(" {16: 1}", f"\n{spare}")), Cart)
        *told, last = str(refusal.value).split("\n")
        assert len([*told, last]) == min(wrong, 51)
        assert "spare.n0: has to be a whole number" in told[0]
        if wrong > 50:
            assert "spare.n49: " in told[-1]
            assert last == f"… and {wrong - 50} problems more in this file."


def test_a_repeated_key_is_told_beside_the_rest(tmp_path):
    text = GOOD.replace("load: 3", "load: 3\nload: heavy\ncolour: red\ncolour: blue")
    with pytest.raises(UserError) as refusal:
        load_yaml_model(_file(tmp_path, text), Cart)
    assert [told.partition("cart.yaml, ")[2] for told in str(refusal.value).split("\n")] == [
        "line 3, load: is given twice; keep one.",
        'line 3, load: has to be a number, not "heavy".',
        "line 5, colour: is given twice; keep one.",
        "line 5, colour: unknown field. Valid are: name, load, wheels, spare.",
    ]


def test_what_is_merged_in_may_be_given_otherwise(tmp_path):
    rear = "<<: *front\n    position: rear"
    text = GOOD.replace("  - {radius", "  - &front {radius").replace("radius: 30\n    position: rear", rear)
    assert load_yaml_model(_file(tmp_path, text), Cart).wheels[1] == Wheel(radius=20, position="rear")
    twice = text.replace("position: rear", "position: rear\n    position: front")
    with pytest.raises(UserError, match=r"line 7, wheels\.1\.position: is given twice; keep one\.$"):
        load_yaml_model(_file(tmp_path, twice), Cart)


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        (load_sweep, "sweep"),
        (load_trial, "trial"),
        (read_cluster_file, "cluster"),
        (load_workload, "workload"),
    ],
)
def test_a_file_with_another_suffix_is_named(tmp_path, monkeypatch, load, kind):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    (tmp_path / f"{kind}s").mkdir()
    (tmp_path / f"{kind}s" / "selene-26.11.yml").touch()
    for name in ("selene-26.11", "selene"):
        with pytest.raises(
            UserError, match=r"selene-26\.11\.yml is not read: rename it to selene-26\.11\.yaml\.$"
        ):
            load(name)
    with pytest.raises(UserError, match=f"unknown {kind} 'helios'"):
        load("helios")
