"""Two sets of runs over all cells: which runs they have, which cells match, and what the numbers say."""

import json
import math
import random

import pytest
import stored

from steptime.errors import UserError
from steptime.judging.run_sets import (
    CellDifference,
    Difference,
    RunSet,
    SetComparison,
    compare_sets,
    difference,
    identity,
    median_difference,
)
from steptime.judging.series import SeriesRun
from steptime.measure.metrics import measure
from steptime.measure.record import format_record
from steptime.recipes.models import Mode
from steptime.store.database import write_transaction
from steptime.store.run_queries import Store
from steptime.store.schema import runs

NOW = 1_790_000_000.0
DAY_S = 86_400.0
UP = "median of 6 cells in both sets +3.0 % (+3.0 to +3.0 %)"
DOWN = "median of 6 cells in both sets -3.0 % (-3.0 to -3.0 %)"


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:///{tmp_path / 'steptime.db'}")


@pytest.fixture
def write(store, make_result):
    """Return a function that stores a run with an image, nodes and a step time."""

    def put(
        job,
        seconds,
        *,
        image="nemo:old",
        nodes=("n1",),
        recipe=None,
        cluster="local",
        tuning="",
        **options,
    ):
        plain = make_result(job, step_times=[seconds] * 20, **options)
        run = plain.run.model_copy(
            update={
                "recipe": plain.run.recipe.model_copy(update=recipe or {}),
                "cluster": cluster,
                "tuning": tuning,
            }
        )
        record = json.loads(make_result(job, run=run, **options).record) | {"nodes": list(nodes)}
        record["provenance"]["staged"]["image"] = image
        text = format_record(record)
        measured = {"measurement": measure(run, plain.log), "log": plain.log}
        stored.write(store, make_result(job, run=run, record=text, **measured, **options))

    return put


def test_releases_are_compared_over_the_cells_of_both(store, write):
    rng = random.Random(7)  # noqa: S311 - step times, not secrets
    for gpus in (1, 2, 4, 8, 16, 32, 64):
        for number in range(4):
            for image, level in (("nemo:old", 1.0), ("nemo:new", 1.05)):
                name = f"{image[5:]}-{gpus}-{number}"
                environment = {"NCCL_ALGO": "Ring"} if (image, gpus) == ("nemo:new", 8) else {}
                write(
                    name, gpus * level * rng.gauss(1, 0.005), image=image, gpus=gpus, environment=environment
                )
    for size in ("small", "large"):
        write(f"only-old-{size}", 1.0, image="nemo:old", size=size, gpus=128)
        write(f"only-new-{size}", 1.0, image="nemo:new", size=size)
    write("new-slow", 99.0, image="nemo:new", gpus=64, nodes=["n2"])

    compared = compare_sets(store, ["image=nemo:old"], ["image=nemo:new"])

    assert compared.measure == "time"
    assert {cell.name for cell in compared.cells} == {f"tiny·fp32·{2**power}" for power in range(7)}
    assert (compared.only_a, compared.only_b) == (
        ("large·fp32·128", "small·fp32·128"),
        ("large·fp32·2", "small·fp32·2"),
    )
    assert compared.median is not None
    assert compared.median.low is not None
    assert compared.median.high is not None
    assert 0.04 < compared.median.low < 0.05 < compared.median.high < 0.06
    assert compared.median.change == pytest.approx(0.05, abs=0.005)
    assert compared.sentence.startswith("B is slower than A: median of 7 cells in both sets +5.")
    slowest = next(cell for cell in compared.cells if cell.name == "tiny·fp32·64")
    assert (len(slowest.a), len(slowest.b)) == (4, 5)
    assert slowest.difference.change == pytest.approx(0.05, abs=0.02), "one run of five says little"
    rows = [cell.row["difference_percent"] for cell in compared.cells]
    assert rows == sorted(rows, reverse=True)
    assert compared.differing == (
        ("image", "nemo:old", "nemo:new", 7),
        ("NCCL_ALGO", "none", "Ring", 1),
        ("nodes", "1, 1 of them in both", "2, 1 of them in both", 0),
    )


def test_types_of_gpu_are_compared_per_token_whatever_their_cluster_and_parallelism(store, write):
    for number in range(3):
        h100 = {"gpu_type": "h100", "dtype": "bf16"}
        write(f"h{number}", 4.0, recipe=h100, cluster="hopper", submitted_at=NOW + number)
        parallel = {"gpu_type": "gb200", "dtype": "bf16", "global_batch_size": 32}
        write(f"g{number}", 4.0, recipe=parallel, cluster="grace", tensor=2, submitted_at=NOW + number)
        write(f"s{number}", 4.0, recipe=h100, cluster="hopper", mode=Mode.CHECKPOINT_SAVE)

    compared = compare_sets(store, ["gpu_type=h100"], ["gpu_type=gb200"])

    assert compared.measure == "tokens", "a step of 16 samples is not one of 32"
    [cell] = compared.cells
    assert cell.name == "tiny·bf16·2"
    assert cell.difference.change == pytest.approx(-0.5)
    rate = store.run("h0")["tokens_per_s_per_gpu"]
    assert cell.row["a_median"] == pytest.approx(1e6 / rate)
    assert (cell.row["a_job"], cell.row["b_job"]) == ("h2", "g2")
    assert compared.only_a == ("tiny·bf16·2·checkpoint save",)
    named = {name: (a, b) for name, a, b, _ in compared.differing}
    assert named["tensor_parallel"] == ("1", "2")
    assert named["cluster"] == ("hopper", "grace")
    by_time = compare_sets(store, ["gpu_type=h100"], ["gpu_type=gb200"], measure="time")
    assert [cell.difference.change for cell in by_time.cells] == [0.0]
    by_price = compare_sets(store, ["gpu_type=h100"], ["gpu_type=gb200"], measure="price")
    assert by_price.cells == (), "no price is configured"
    assert by_price.sentence == (
        "1 cell in both sets, but no price of their runs is known: "
        "set price_per_gpu_hour in the files of the clusters"
    )
    with write_transaction(store.url) as connection:
        for cluster, price in (("hopper", 2.0), ("grace", 3.0)):
            is_there = runs.c.cluster == cluster
            connection.execute(runs.update().where(is_there).values(price_per_million_tokens=price))
    by_price = compare_sets(store, ["gpu_type=h100"], ["gpu_type=gb200"], measure="price")
    assert [cell.difference.change for cell in by_price.cells] == [pytest.approx(0.5)]


def test_runs_with_an_argument_are_compared_with_runs_without(store, write):
    for number in range(3):
        write(f"a{number}", 1.0)
        write(f"b{number}", 1.1, tuning="tp2 recompute_num_layers=1")
        write(f"c{number}", 1.3, tuning="tp2")
    compared = compare_sets(store, ["tuning="], ["tuning=*recompute_num_layers=1*"])
    assert [(cell.name, round(cell.difference.change, 3)) for cell in compared.cells] == [
        ("tiny·fp32·2", 0.1)
    ]


def test_this_month_against_the_last_one(store, write, monkeypatch):
    monkeypatch.setattr("steptime.judging.run_sets.time.time", lambda: NOW)
    for day in (1, 8, 29, 31, 38, 61):
        write(f"before-{day}", 1.0 if day > 30 else 1.1, submitted_at=NOW - day * DAY_S)
    compared = compare_sets(store, ["since=60d", "until=30d"], ["since=30d"])
    [cell] = compared.cells
    assert [run.job_name for run in cell.a] == ["before-31", "before-38"]
    assert [run.job_name for run in cell.b] == ["before-1", "before-8", "before-29"]
    assert compared.sentence == "median of 1 cell in both sets +10.0 %; an interval needs 6 cells"
    overlapping = compare_sets(store, ["since=60d"], ["since=30d"])
    assert "3 runs are in both sets" in overlapping.remarks


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["image=nemo:old"], ["a"]),
        (["image=nemo:*"], ["a", "b", "c"]),
        (["image=*"], ["a", "b", "c"]),
        (["image=nemo:old", "image=nemo:new"], ["a", "b"]),
        (["node=n1"], ["a", "b"]),
        (["node=n"], []),
        (["NCCL_ALGO=Ring"], ["b"]),
        (["variable=NCCL_ALGO=R*"], ["b"]),
        (["NCCL_ALGO="], ["a", "c"]),
        (["gpus=2", "image=nemo:n*"], ["b", "c"]),
        (["version=nemo 2.7.3", "node=n2"], ["c"]),
        (["proxy=true"], []),
        (["proxy=false", "git_commit=675de01*", "node=n2"], ["c"]),
        (["image=nemo.old"], []),
    ],
)
def test_a_set_is_chosen_by_recorded_values(store, write, conditions, expected):
    write("a", 1.0)
    write("b", 1.0, image="nemo:new", environment={"NCCL_ALGO": "Ring"})
    write("c", 1.0, image="nemo:newest", nodes=["n2", "n11"])
    assert sorted(run.job_name for run in RunSet.parse(conditions, NOW).read(store)) == expected


@pytest.mark.parametrize(
    ("conditions", "complaint"),
    [
        ([], "a set of runs needs a condition"),
        (["image"], "'image' is no condition: write NAME=VALUE"),
        (["imag=x"], "unknown column 'imag' of conditions"),
        (["step_time_mean_s=1"], "unknown column 'step_time_mean_s'"),
        (["since=often"], "since 'often' is not a time"),
        (["image=nemo:odd"], "unknown image 'nemo:odd' of the stored results"),
        (["node=n9"], r"set A \(node=n9\) has no valid run of a judged mode"),
    ],
)
def test_sets_that_cannot_be_read_are_refused(store, write, conditions, complaint):
    write("a", 1.0)
    with pytest.raises(UserError, match=complaint):
        compare_sets(store, conditions, ["image=nemo:old"])


def test_cells_leave_out_what_the_sets_compare():
    def columns(a, b):
        return set(identity(RunSet.parse([a], NOW), RunSet.parse([b], NOW)))

    every = columns("image=a", "image=b")
    assert {"cluster", "gpu_type", "tensor_parallel", "gpus", "dtype"} <= every
    assert columns("cluster=a", "cluster=a") == columns("gpus=4", "image=a") == every
    assert columns("cluster=a", "gpu_type=b") == columns("gpu_type=a", "gpu_type=b")
    apart = every - columns("gpu_type=h100", "gpu_type=gb200")
    assert {"gpu_type", "cluster", "tensor_parallel"} <= apart
    assert "gpus" not in apart
    assert every - columns("dtype=bf16", "dtype=fp8") == (apart | {"dtype"}) - {"gpu_type", "cluster"}


@pytest.mark.parametrize(("a", "b"), [(2, 2), (3, 3), (4, 12), (20, 20)])
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_the_interval_of_a_cell_has_the_true_difference_in_95_of_100(a, b, outliers):
    rng = random.Random(3)  # noqa: S311 - step times, not secrets

    def seconds(count, level):
        return [
            level * math.exp(rng.gauss(0, 0.1 if rng.random() < outliers else 0.01)) for _ in range(count)
        ]

    differences = [difference(seconds(a, 10), seconds(b, 10.5)) for _ in range(400)]
    inside = [one.low <= 0.05 <= one.high for one in differences if one.low and one.high]
    assert len(inside) == 400
    assert sum(inside) >= 0.93 * 400


@pytest.mark.parametrize(("cells", "ends"), [(6, (1, 6)), (9, (2, 8)), (25, (8, 18))])
def test_the_median_over_cells_lies_between_the_ranks_of_the_sign_test(cells, ends):
    found = median_difference([rank / 100 for rank in range(1, cells + 1)][::-1])
    assert (found.low, found.high) == (ends[0] / 100, ends[1] / 100)


@pytest.mark.parametrize(
    ("changes", "measure", "sentence"),
    [
        ((0.03,) * 6, "time", f"B is slower than A: {UP}"),
        ((-0.03,) * 6, "time", f"B is faster than A: {DOWN}"),
        ((0.03,) * 6, "tokens", f"B needs more GPU time for a token than A: {UP}"),
        ((-0.03,) * 6, "tokens", f"B needs less GPU time for a token than A: {DOWN}"),
        ((0.03,) * 6, "price", f"B costs more for a token than A: {UP}"),
        ((-0.03,) * 6, "price", f"B costs less for a token than A: {DOWN}"),
        (
            (-0.01, 0.03) * 3,
            "time",
            "A and B do not differ by more than chance explains: "
            "median of 6 cells in both sets +1.0 % (-1.0 to +3.0 %)",
        ),
        ((0.03,), "time", "median of 1 cell in both sets +3.0 %; an interval needs 6 cells"),
        ((), "time", "no cell is in both sets: 2 in A, 3 in B"),
    ],
)
def test_the_sentence_and_the_remarks(changes, measure, sentence):
    days = (1_789_971_200.0, 1_789_971_200.0 + 3 * DAY_S)
    old, new = (SeriesRun({"job_name": f"job-{at}", "submitted_at": at}, 1.0, "") for at in days)
    cells = tuple(CellDifference("c", (), (), (), (), Difference(change)) for change in changes)
    compared = SetComparison(measure, (old, new), (new,), cells, ("x", "y"), ("x", "y", "z"), ())
    assert compared.sentence == sentence
    told, median = compared.as_json, compared.median
    percents = (
        (None, None, None)
        if median is None
        else tuple(
            value if value is None else 100 * value for value in (median.change, median.low, median.high)
        )
    )
    names = ("median_percent", "median_from_percent", "median_to_percent")
    assert tuple(told[name] for name in names) == percents
    assert (told["only_a"], told["only_b"], told["measure"]) == (["x", "y"], ["x", "y", "z"], measure)
    basis = {
        "time": [],
        "tokens": ["compared is the GPU time of a million tokens, in seconds"],
        "price": ["compared is the price of a million tokens"],
    }
    assert compared.remarks == [
        "A: 2 runs of 2026-09-21 to 2026-09-24; B: 1 run of 2026-09-24",
        *basis[measure],
        "1 run is in both sets",
    ]


def test_few_runs_and_few_cells_have_no_interval():
    assert difference([1.0], [1.1, 1.2]).low is None
    assert median_difference([0.1] * 5).low is None
    assert not median_difference([0.1] * 5).is_certain
