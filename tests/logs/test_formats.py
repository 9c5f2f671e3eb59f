"""Each log format: text around its lines and sequences of them; test_lines_by_release.py has each line."""

from itertools import chain
from pathlib import Path

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.logs.formats import gibibytes, whole
from steptime.logs.reader import read_log
from steptime.logs.training_log import Step

DATA = Path(__file__).parents[1] / "data" / "logs"


def read(text):
    return read_chunks([text.encode() if isinstance(text, str) else text])


def only_step(text):
    (step,) = read(text).steps
    return step


def test_steptimes_own_wall_time_beside_nemos_step_time():
    step = only_step(line_forms.nemo2(7, tail=" | wall_step_timing in s: 2.701"))
    assert (step.step_time_s, step.wall_time_s) == (2.693, 2.701)


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        "127: ",
        "[2025-04-11 14:48:45] ",
        "pretrain_llama/0 ",
        "[rank3]: ",
        "\x1b[32m[default0]:",
        "I.pl:23] ",
    ],
)
def test_prefixes_of_launchers(prefix):
    assert only_step(line_forms.nemo2(7, prefix=prefix)) == only_step(line_forms.nemo2(7))


@pytest.mark.parametrize(
    ("printed", "value"), [("2.693", 2.693), ("2e+3", 2000.0), ("1.249e+03", 1249.0), ("3", 3.0), (".5", 0.5)]
)
@pytest.mark.parametrize("glued", ["", "[NeMo I 2025-04-11 nemo_logging:393] text", "else", "e+", " s", "]"])
def test_numbers_with_text_glued_behind(printed, value, glued):
    assert only_step(line_forms.nemo2(7, time=printed + glued)).step_time_s == value


def test_a_count_is_what_a_float_tells_from_its_neighbours():
    counts = {b"2e+3": 2000, b"-9007199254740992": -(2**53), b"9007199254740994": None, b"1e300": None}
    assert {text: whole(text) for text in counts} == counts
    assert whole(b"nan") is None
    sizes = {b"9.5": 10200547328, b"8388609": None}
    assert {text: gibibytes(text) for text in sizes} == sizes


def test_lines_glued_together_are_all_read():
    glued = "".join(line_forms.nemo2(step).strip() for step in range(5)) + "\n"
    assert [step.global_step for step in read(glued).steps] == [0, 1, 2, 3, 4]


def test_a_step_without_timing_is_a_step():
    log = read("Training epoch 0, iteration 0/0 | global_step: 0 | reduced_train_loss: 8.0\n")
    assert log.steps == (Step(global_step=0, loss=8.0),)
    assert [problem.kind for problem in log.problems] == ["no_step_time"]


def test_the_global_step_counts_where_epochs_count_iterations_anew():
    log = read("Training epoch 1, iteration 3/9 | global_step: 13 | train_step_timing in s: 1.5\n")
    assert log.steps[0].global_step == 13
    (short,) = [problem for problem in log.problems if problem.kind == "short"]
    assert short.message == (
        "training ended at step 13 of 19 (printed as 4 of 10): 6 steps are missing at the end"
    )


def test_a_bar_drawn_over_itself():
    """The log has carriage returns as line ends, a bar before the first step, and the last bar twice."""
    text = "Epoch 0: :   0%|          | 0/100 [00:00<?]" + "".join(map(line_forms.tqdm, range(100)))
    text += line_forms.tqdm(99).replace("]", ", val_loss=7.1]") + "[NeMo I] done\n"
    log = read(text)
    assert [step.global_step for step in log.steps] == list(range(100))
    assert {step.step_time_s for step in log.steps} == {3.59}
    assert log.problems == ()


def test_rounded_step_numbers_are_told_apart_by_the_bar():
    """Step 1999 of 2000 is printed as `2e+3`, and so are its neighbours."""
    text = "".join(
        line_forms.tqdm(step, total=2000, printed_step=f"{step:.1e}".replace("e+0", "e+"))
        for step in range(1995, 2000)
    )
    assert "global_step=2.0e+3" in text
    assert [step.global_step for step in read(text + "\n").steps] == [1995, 1996, 1997, 1998, 1999]


def test_megatron_bridge_pairs_each_utilization_with_its_step():
    lines = [line_forms.megatron_bridge(iteration) for iteration in range(1, 51)]
    lines[9] = lines[9].splitlines()[1] + "\n"
    tflops = [step.tflops_per_gpu for step in read("".join(lines)).steps]
    assert tflops == [None if iteration == 10 else iteration + 600.5 for iteration in range(1, 51)]


def test_a_log_with_a_line_every_tenth_step():
    log = read("".join(line_forms.megatron_bridge(iteration) for iteration in range(10, 51, 10)))
    assert [step.global_step for step in log.steps] == [9, 19, 29, 39, 49]
    assert [(problem.kind, problem.message, problem.fatal) for problem in log.problems] == [
        ("log_interval", "the log has one line per 10 steps", False)
    ]


def test_the_log_of_rank_0_alone_has_the_times_of_megatron_bridge():
    log = read(
        "Step Time : 125.37s GPU utilization: 20.9MODEL_TFLOP/s/GPU\n"
        "Step Time : 6.13s GPU utilization: 426.6TFLOP/s/GPU\n"
        "Step Time : 2.23s GPU utilization: 1174.3MODEL_TFLOP/s/GPU\n"
    )
    assert [(step.global_step, step.step_time_s, step.tflops_per_gpu) for step in log.steps] == [
        (0, 125.37, 20.9),
        (1, 6.13, 426.6),
        (2, 2.23, 1174.3),
    ]
    assert "unnumbered_steps" in {problem.kind for problem in log.problems}


def test_the_exact_time_of_megatron_counts_beside_the_rounded_one():
    lines = [
        line_forms.megatron_bridge(iteration, total=300, elapsed_ms="9088.1") for iteration in range(1, 301)
    ]
    assert {step.step_time_s for step in read("".join(lines)).steps} == {9.0881}
    rates_behind = "".join("".join(reversed(line.splitlines(keepends=True))) for line in lines)
    assert {step.step_time_s for step in read(rates_behind).steps} == {9.0881}


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ("elapsed time per iteration (ms): 991.4", 0.9914),
        ("elapsed time per iteration (s): 7.53", 7.53),
        ("elapsed time per iteration (ms): 991.4 |\n", 0.9914),
    ],
)
def test_megatrons_time_in_any_unit(field, seconds):
    """This also holds if the line ends behind the separator that follows the time."""
    step = only_step(
        f" iteration        8/     100 | consumed samples:     32 | {field} | lm loss: 1.4E+00 |\n"
    )
    assert step.step_time_s == seconds


TITAN_SETUPS = {
    "0.1": (
        "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
        "Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps "
        "2, sequence length 8192, total steps 10 (warmup 2).\n"
    ),
    "0.2.2": (
        "Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps "
        "2, sequence length 8192, total steps 10 (warmup 2)\n"
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=8, etp=2\n"
    ),
    "resumed": (
        "Building 1-D device mesh with ['dp_shard'], [8]\n"
        "Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation steps "
        "1, sequence length 2048, total steps 10 (warmup 2)\n"
    ),
    "later": (
        "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2, ep=4\n"
        "Trainer is initialized with 32768 tokens per DP rank, 131072 tokens per train step, gradient "
        "accumulation steps 1, maximum context length 8192, total steps 10 (warmup 2)\n"
    ),
}


@pytest.mark.parametrize("setup", TITAN_SETUPS.values(), ids=TITAN_SETUPS)
def test_torchtitans_step_time_follows_from_its_rate_and_its_setup(setup):
    """A step has 131,072 tokens on 8 GPUs, each of which trains 7,282 a second."""
    log = read(setup + "".join(line_forms.torchtitan(step) for step in range(1, 11)))
    assert {step.step_time_s for step in log.steps} == {131072 / 8 / 7282}
    assert log.problems == ()
    again = read(
        setup.replace("2", "1") + setup + "".join(line_forms.torchtitan(step) for step in range(1, 11))
    )
    assert again.steps == log.steps, "what a restart prints counts"


@pytest.mark.parametrize("setup", ["", *(line + "\n" for line in TITAN_SETUPS["0.1"].splitlines())])
def test_without_all_of_its_setup_torchtitan_has_no_step_time(setup):
    log = read(setup + line_forms.torchtitan(1))
    assert log.steps[0].step_time_s is None


@pytest.mark.parametrize(
    "line",
    [
        *(line_forms.nemo2(step, time="6,00") for step in (0, 9)),
        line_forms.tqdm(3, time="3,590") + "\n",
        line_forms.tqdm(3, printed_step="3,000", time="3,590") + "\n",
        line_forms.megatron_bridge(1, elapsed_ms="9090,1"),
        line_forms.nemo2(0, time="1,234.5"),
    ],
)
def test_a_decimal_comma_is_an_error_and_no_number(line):
    log = read(line * 1)
    (problem,) = [problem for problem in log.problems if problem.kind == "comma_in_number"]
    assert problem.fatal
    assert "a comma in its number" in problem.message
    assert [step.step_time_s for step in log.steps] == [9.09 if "GPU utilization" in line else None]


@pytest.mark.parametrize("printed", ["inf", "nan", "1e400"])
def test_memory_that_no_gpu_has_is_none(printed):
    line = line_forms.torchtitan(1).replace("9.46GiB", f"{printed}GiB")
    assert only_step(line).peak_memory_bytes is None


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (0, 2, 1, 3)])
def test_torchtitans_loss_is_that_of_the_pipelines_last_stage(ranks):
    """The other stages print -1, as in torchtitan's issues 931 and 1232."""
    losses = {step: f"{9 - step}.25" for step in range(1, 7)}
    printed = {rank: losses if rank % 2 else dict.fromkeys(losses, "-1.00000") for rank in ranks}
    lines = {
        rank: [line_forms.torchtitan(step, rank=rank, loss=loss) for step, loss in printed[rank].items()]
        for rank in ranks
    }
    log = read("".join(chain.from_iterable(zip(*lines.values(), strict=True))))
    assert [step.loss for step in log.steps] == [8.25, 7.25, 6.25, 5.25, 4.25, 3.25]
    assert [step.tokens_per_s_per_gpu for step in log.steps] == [7282] * 6
    first_stage = read("".join(lines[0]))
    assert [step.loss for step in first_stage.steps] == [None] * 6, "-1 is no loss"


def test_torchtitan_in_colour_on_eight_ranks():
    log = read("".join(line_forms.torchtitan(step, rank=rank) for step in range(1, 11) for rank in range(8)))
    assert log.format == "torchtitan"
    assert [step.global_step for step in log.steps] == list(range(10))
    assert log.steps[0] == Step(
        global_step=0,
        loss=3.24405,
        tflops_per_gpu=0.52,
        tokens_per_s_per_gpu=7282.0,
        peak_memory_bytes=10157597655,
    )
    assert {problem.kind for problem in log.problems} == {"end_unknown", "no_step_time", "repeated_lines"}


@pytest.mark.parametrize(
    ("name", "steps", "step_times_s", "tflops", "memory_bytes"),
    [
        # Ended by its time limit after step 16 of 19.
        ("bf16", 17, (1.579, 1.586, 1.575, 1.591, 1.585, 1.589), 542.4, 36820856832),
        ("fp8", 20, (1.404, 1.409, 1.414, 1.397, 1.407, 1.409), 611.7, 36519174144),
    ],
)
def test_a_real_run_on_a_gpu(name, steps, step_times_s, tflops, memory_bytes):
    """NeMo 2.7.3 on one H100 trained two layers of Llama 3.1 8b (the folder in one line was cut short)."""
    log = read_log(DATA / f"log-nemo2_h100_{name}.out", max_steps=20)
    assert (log.format, log.mode, len(log.steps)) == ("nemo2", "performance", steps)
    assert tuple(step.step_time_s for step in log.steps[-6:]) == step_times_s
    assert log.steps[-1].tflops_per_gpu == tflops
    assert log.steps[-1].peak_memory_bytes == memory_bytes
    assert [problem.kind for problem in log.problems] == ([] if steps == 20 else ["short", "no_end_record"])


def test_a_real_run_that_saved():
    """NeMo 2.7.3 ran on the CPU: 2 ranks, 20 steps, an asynchronous save (lines with paths were removed)."""
    log = read_log(DATA / "log-nemo2_cpu_save.out", max_steps=20)
    assert (log.format, log.mode, len(log.steps)) == ("nemo2", "checkpoint_save", 20)
    assert log.problems == ()
    assert log.steps[19].consumed_samples == 160
    assert [(save.kind, save.iteration, save.asynchronous) for save in log.checkpoints] == [
        ("save", 19, True)
    ]


def test_a_real_run_that_loaded():
    """The run loads that checkpoint and trains one more step."""
    log = read_log(DATA / "log-nemo2_cpu_load.out", max_steps=1)
    assert (log.mode, len(log.steps), log.problems) == ("checkpoint_load", 1, ())
    assert [(load.kind, load.duration_s) for load in log.checkpoints] == [("load", 0.208)]


def test_megatron_bridge_itself_saved_and_loaded():
    """Megatron-Bridge 0.6.2 from PyPI trained a tiny GPT on the CPU (lines with paths were removed)."""
    log = read_log(DATA / "log-megatron_bridge_cpu_save.out", max_steps=6)
    assert (log.format, log.mode) == ("megatron_bridge", "checkpoint_save")
    assert ([step.global_step for step in log.steps], log.problems) == ([*range(6)], ())
    assert [step.step_time_s for step in log.steps[:2]] == [1.0521, 0.0695]
    assert (log.steps[5].loss, log.steps[5].consumed_samples) == (6.240666, 24)
    assert [(save.kind, save.duration_s) for save in log.checkpoints if save.duration_s] == [
        ("save", 17.12805)
    ]

    log = read_log(DATA / "log-megatron_bridge_cpu_load.out", first_step=6, max_steps=8)
    assert log.mode == "checkpoint_load"
    assert ([step.global_step for step in log.steps], log.problems) == ([6, 7], ())
    assert [(load.kind, load.duration_s) for load in log.checkpoints if load.duration_s] == [
        ("load", 0.23891)
    ]
