"""What the trainer asks of NeMo, Megatron-Bridge and torch, and what it prints, without any of them.

The texts are kept in tests/golden/trainer. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/trainer/test_asked_of_frameworks.py
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import assert_kept, masked

from .recorded_frameworks import asked, recorded_frameworks

# Numbers that occur once, so that no two of them can be exchanged unseen.
DENSE = {
    "architecture": "llama",
    **{"num_layers": 30, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32},
    **{"num_query_groups": 8, "vocab_size": 128256, "seq_length": 8192},
}
NEMOTRON = DENSE | {"architecture": "nemotron4", "hidden_size": 18432, "num_attention_heads": 96}
HYBRID = DENSE | {
    "architecture": "nemotron_h",
    "hybrid": {
        **{"attention_head_dim": 112, "mamba_num_heads": 72, "mamba_head_dim": 56, "mamba_num_groups": 24},
        **{"mamba_state_dim": 160, "chunk_size": 144, "pattern": "M-" * 14 + "*-"},
    },
}
MIXTURE = DENSE | {
    **{"architecture": "gpt", "gated_linear_unit": True, "kv_channels": 192, "mtp_num_layers": 1},
    **{"window_size": 1023, "window_attn_skip_freq": 5, "share_embeddings_and_output_weights": True},
    "moe": {
        **{"num_moe_experts": 64, "moe_router_topk": 6, "moe_ffn_hidden_size": 2048, "num_dense_layers": 3},
        **{"moe_shared_expert_intermediate_size": 3072, "moe_layer_freq": 2},
        **{"moe_router_score_function": "sigmoid", "moe_router_load_balancing_type": "seq_aux_loss"},
    },
    "mla": {
        **{"kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 96, "v_head_dim": 160},
        "q_lora_rank": 1536,
    },
}
SPREAD = {"data": 3, "tensor": 4, "pipeline": 2, "context": 5, "virtual_pipeline": 8}
ONE = {"data": 2}
OVERLAPS = {
    **{
        "overlap_grad_reduce": True,
        "tp_comm_overlap": True,
        "tp_comm_overlap_cfg": "userbuffers_b200_h18432",
    },
    **{"wgrad_deferral_limit": 22, "defer_embedding_wgrad_compute": True, "gc_interval": 77},
    **{"overlap_param_gather_with_optimizer_step": True, "gpu_samples": True},
}
LEARNING = {"learning_rate": 4.5e-5, "warmup_steps": 500, "use_precision_aware_optimizer": True}
NEMO_RUNS = {
    "dense, spread, with overlaps": {
        **{"model": DENSE, "parallelism": SPREAD, "settings": OVERLAPS | LEARNING, "device": "cuda"},
        "srun": True,
    },
    "in bf16, with a pipeline of uneven stages": {
        "model": NEMOTRON,
        "parallelism": {"data": 6, "pipeline": 3, "first_stage_layers": 9, "last_stage_layers": 11},
        "settings": {"average_in_collective": True, "comm_overlap_callback": True},
        "device": "cuda",
    },
    "in FP8, delayed, with graphs": {
        **{"model": NEMOTRON | {"hidden_size": 6144}, "parallelism": ONE, "dtype": "fp8", "device": "cuda"},
        "settings": {
            **{"fp8_recipe": "delayed", "cuda_graphs": True, "cross_entropy_fusion_impl": "te"},
            **{"overlap_param_gather": True, "check_for_nan_in_grad": True},
        },
    },
    "in FP8 of the tensor itself, saving in the background": {
        **{"model": HYBRID, "parallelism": ONE, "dtype": "fp8", "device": "cuda"},
        "settings": {"fp8_recipe": "current", "first_last_layers_bf16": True, "async_save": True},
        "mode": "checkpoint_save",
    },
    "on the CPU, in a bar": {
        **{"model": HYBRID, "parallelism": ONE, "dtype": "fp32", "gpu_type": "cpu", "step_log": "bar"},
    },
    "on the CPU, loading": {
        **{"model": NEMOTRON, "parallelism": ONE, "dtype": "fp32", "gpu_type": "cpu", "rank": 1},
        **{"mode": "checkpoint_load", "first_step": 20, "checkpoint_path": "/saved", "weights": "/saved/w"},
    },
    "profiled": {
        **{"model": DENSE, "parallelism": ONE, "device": "cuda", "mode": "profile"},
        "profile": {"first_step": 33, "last_step": 35, "ranks": [0]},
        "settings": {"gpu_samples": True},
    },
}
BRIDGE_RUNS = {
    "dense, spread, with overlaps": NEMO_RUNS["dense, spread, with overlaps"]
    | {"dtype": "fp8_mx", "settings": OVERLAPS | LEARNING | {"fp8_recipe": "mxfp8"}},
    "a mixture": {
        **{"model": MIXTURE, "device": "cuda"},
        "parallelism": {"data": 8, "pipeline": 3, "expert": 4, "expert_tensor": 2, "virtual_pipeline": 5},
        "settings": {
            **{"moe_flex_dispatcher_backend": "hybridep", "overlap_moe_expert_parallel_comm": True},
            **{"cuda_graphs": True, "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]},
        },
        "mode": "checkpoint_save",
    },
    "a hybrid, computed again, with FSDP": {
        **{"model": HYBRID, "parallelism": ONE, "device": "cuda", "dtype": "fp8_cs"},
        "settings": {
            **{"fp8_recipe": "current", "first_last_layers_bf16": True, "use_megatron_fsdp": True},
            **{"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4},
            **{"recompute_modules": ["mlp", "moe"]},
        },
    },
    "on the CPU": {"model": DENSE, "parallelism": ONE, "dtype": "fp32", "gpu_type": "cpu"},
    "a mixture on the CPU, loading": {
        **{"model": MIXTURE | {"mla": None, "mtp_num_layers": None}, "parallelism": ONE, "dtype": "fp32"},
        **{"gpu_type": "cpu", "mode": "checkpoint_load", "first_step": 20, "checkpoint_path": "/saved"},
        "weights": "/saved",
    },
}


@pytest.fixture(scope="module")
def trainer():
    """Yield the trainer's modules, imported beside the stand-ins."""
    with recorded_frameworks():
        import trainer.bridge.training
        import trainer.nemo1
        import trainer.training

        yield trainer


def planned(trainer, folder, case, backend):
    """Return a case as the run that the trainer reads."""
    path = folder / "run.json"
    recipe = {
        **{"dtype": "bf16", "gpu_type": "b200", "micro_batch_size": 2, "global_batch_size": 480},
        **{name: case[name] for name in ("dtype", "gpu_type", "step_log", "image") if name in case},
        **{"model": case["model"], "parallelism": case["parallelism"], "backend": backend},
    }
    content = {
        **{"schema_version": 1, "experiment": "pretrain", "max_steps": 50, "mode": "performance"},
        **{"seed": 4321, "window": {"first": 35, "last": 44}, "model_flops": 4.5e14, "recipe": recipe},
        "performance": {"trainer": case.get("settings", {})},
    }
    names = ("mode", "first_step", "checkpoint_path", "profile")
    content |= {name: case[name] for name in names if name in case}
    path.write_text(json.dumps(content))
    return trainer.run.read_run(path)


def surroundings(trainer, case, run):
    ranks = run.recipe.parallelism.world_size
    launch = trainer.launch.Launch(
        rank=case.get("rank", 0),
        world_size=ranks,
        local_world_size=min(ranks, 4),
        threads=1,
        by_launcher=case.get("device") == "cuda",
        on_one_host=True,
        has_mpi="srun" in case,
    )
    folders = trainer.run.Folders(
        Path("/job"), Path(case["weights"]) if "weights" in case else None, Path("/job/history.jsonl")
    )
    progress = trainer.progress.Progress(run=run)
    ending = SimpleNamespace(progress=progress, failed=lambda error: None)
    return launch, folders, ending


def test_what_is_asked_of_nemo(trainer, tmp_path):
    told = []
    for what, case in NEMO_RUNS.items():
        run = planned(trainer, tmp_path, case, "nemo")
        asked()
        trainer.training.fit(run, *surroundings(trainer, case, run), case.get("device", "cpu"))
        told.append(f"== {what}\n{asked()}\n")
    assert_kept("trainer/nemo.txt", "\n".join(told))


def test_what_is_asked_of_megatron_bridge(trainer, tmp_path):
    told = []
    for what, case in BRIDGE_RUNS.items():
        run = planned(trainer, tmp_path, case, "megatron_bridge")
        _, folders, _ = surroundings(trainer, case, run)
        asked()
        trainer.bridge.training.configuration(run, folders, case.get("device", "cpu"))
        told.append(f"== {what}\n{asked()}\n")
    assert_kept("trainer/bridge.txt", "\n".join(told))


class Clock:
    """A clock that moves on by itself: an eighth of a second with each look at it."""

    def __init__(self, began_at):
        self.now = began_at

    def __call__(self):
        self.now += 0.125
        return self.now


class Loop:
    """A training loop at one step, on one of two ranks of two nodes."""

    def __init__(self, step, rank=0):
        self.step, self.rank = step, rank
        self.chunks = [Chunk()]
        self.consumed_samples, self.config = 9600, None
        self.loss, self.learning_rate, self.step_time_s = 11.0 - step / 8, 0.001 * step, 0.5


class Chunk:
    def __init__(self):
        self.hooks = []

    def hooked(self, hook):
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    register_forward_pre_hook = register_forward_hook = hooked


def test_what_a_training_prints_and_writes(trainer, tmp_path, monkeypatch, capsys):
    from trainer import callbacks, ranks
    from trainer.ending import Ending, RankFailure
    from trainer.progress import CheckpointTransfer, Progress

    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setattr(trainer.records, "versions", lambda: {"nemo": "2.7.3"})
    monkeypatch.setattr("trainer.ending.versions", lambda: {"nemo": "2.7.3"})
    monkeypatch.setattr("time.perf_counter", Clock(100.0))
    monkeypatch.setattr("time.thread_time", Clock(7.0))
    monkeypatch.setattr("time.time", Clock(1.7e9))
    monkeypatch.setattr(ranks, "gathered", lambda value: [value, of_another(value)])
    monkeypatch.setattr(ranks, "count_parameters", lambda chunks: 70_553_706_496)
    monkeypatch.setattr(ranks, "highest", lambda value: 80e9)
    monkeypatch.setattr(ranks, "work_group", lambda: 3)
    parts = {"tensor": 4, "pipeline": 2, "context": 5, "data": 3, "expert": None}
    monkeypatch.setattr(ranks, "parallelism", lambda: trainer.spec.Parallelism(**parts))
    sampling = SimpleNamespace(
        end=lambda began_at, ended_at: {"node": "node7", "power_w": [ended_at - began_at]}
    )
    monkeypatch.setattr(callbacks.gpu_samples, "SamplingProcess", lambda output, ranks: sampling)

    def of_another(value):
        if isinstance(value, tuple):
            return (0.25, 1, "node8")
        return (
            "node8"
            if isinstance(value, str)
            else value and {"node": "node8"}
            if isinstance(value, dict)
            else value
        )

    case = NEMO_RUNS["on the CPU, loading"] | {"parallelism": {"data": 2}, "settings": {"gpu_samples": True}}
    run = planned(trainer, tmp_path, case, "nemo")
    launch, _, _ = surroundings(trainer, case | {"rank": 0}, run)
    folders = trainer.run.Folders(tmp_path, None, tmp_path / "history.jsonl")
    ending = Ending(tmp_path, launch, Progress(run=run, imports_s=12.5, own_peak_memory=lambda: 79 << 30))
    acting = [
        callbacks.Records(run, "cpu", ending),
        *callbacks.common_callbacks(run, launch, folders, ending, "cpu", logs_steps=True),
    ]
    said = [", ".join(type(callback).__name__ for callback in acting)]
    for callback in acting:
        callback.on_train_start(Loop(20))
    for step in range(20, 50):
        loop = Loop(step)
        for callback in acting:
            callback.on_step_start(loop)
        for hook in [hook for chunk in loop.chunks for hook in chunk.hooks] * 3:
            hook()
        for callback in acting:
            callback.on_step_end(loop)
        assert not loop.chunks[0].hooks
    ending.progress.checkpoints.append(CheckpointTransfer("save", 160 * 10**9, 12.5, 2.5))
    for callback in acting:
        callback.on_train_end(Loop(49))
    ending.completed()
    ending.completed()
    said.append(capsys.readouterr().out)
    said.append("".join((tmp_path / "history.jsonl").read_text().splitlines(True)[:3]))
    for refused in (Loop(19), Loop(21)):
        with pytest.raises(trainer.errors.TrainerError) as error:
            acting[0].on_train_start(refused)
        said.append(f"{error.value}\n")
    capsys.readouterr()
    for name, end in (
        ("another rank", lambda ending: ending.failed_by(RankFailure(1, "rank 1 failed: no", 2, 81 << 30))),
        ("this rank", lambda ending: ending.failed(RuntimeError("the disk\nis gone"))),
        ("a person", lambda ending: ending.failed(KeyboardInterrupt())),
        ("Slurm", lambda ending: ending.failed(SystemExit())),
    ):
        ending = Ending(tmp_path / name, launch, Progress(own_peak_memory=lambda: 3 << 30))
        said.append(f"exit code {end(ending)}")
        said.append("".join(capsys.readouterr()))
    assert_kept("trainer/printed.txt", masked("\n".join(said), {re.escape(str(tmp_path)): "/job"}))


def test_what_callbacks_ask_of_nemo_and_of_profilers(trainer, tmp_path, monkeypatch, capsys):
    from trainer import nemo_callbacks, profiling, ranks
    from trainer.progress import Progress

    stage = SimpleNamespace(
        **{"get_pipeline_model_parallel_rank": lambda: 3, "get_expert_model_parallel_world_size": lambda: 8},
        get_expert_model_parallel_rank=lambda: 5,
    )
    monkeypatch.setattr(nemo_callbacks, "parallel_state", stage)
    monkeypatch.setattr(ranks, "parallel_state", stage)
    run = planned(trainer, tmp_path, NEMO_RUNS["dense, spread, with overlaps"], "nemo")
    timing, progress, logged = SimpleNamespace(timer={"train_step_timing": 2.0}), Progress(), []
    module = SimpleNamespace(log=lambda *what, **how: logged.append(f"{what} {how}"), config="its config")
    asked()
    nemo_callbacks.ModelParallelSeed(4321).setup(None, None, "fit")
    callbacks = [nemo_callbacks.WallTime(progress), nemo_callbacks.ModelFlops(run, timing)]
    for wall_time_s in (None, 2.25):
        progress.wall_time_s = wall_time_s
        for callback in callbacks:
            callback.on_train_batch_end(None, module, None, None, 0)
    loop = nemo_callbacks.NemoLoop(
        SimpleNamespace(
            global_rank=6,
            callback_metrics={"reduced_train_loss": 11.5, "lr": 0.001},
            datamodule=SimpleNamespace(data_sampler=SimpleNamespace(init_consumed_samples=9600)),
            strategy=SimpleNamespace(megatron_parallel=["chunk 0", "chunk 1"]),
        ),
        *(module, timing, 20),
    )
    names = ("step", "rank", "chunks", "config", "consumed_samples", "loss", "learning_rate", "step_time_s")
    logged.append(", ".join(f"{name} {getattr(loop, name)}" for name in names))
    called = []
    hooks = ("on_train_start", "on_step_start", "on_step_end", "on_train_end")
    noting = SimpleNamespace(
        **{hook: lambda loop, hook=hook: called.append(f"{hook} of step {loop.step}") for hook in hooks},
        on_exception=lambda error: called.append(f"on_exception {error}"),
    )
    within, of_nemo = nemo_callbacks.InNemo(noting, timing), SimpleNamespace(global_step=7)
    within.on_train_start(of_nemo, module)
    within.on_train_batch_start(of_nemo, module, None, 0)
    within.on_train_batch_end(of_nemo, module, None, None, 0)
    within.on_train_end(of_nemo, module)
    within.on_exception(of_nemo, module, ValueError("no"))
    logged += [*called, f"work group {ranks.work_group()}", asked()]
    monkeypatch.chdir(tmp_path)
    for nsight in (False, True):
        if nsight:
            monkeypatch.setenv("STEPTIME_NSIGHT", "1")
        for rank in (0, 1):
            window = trainer.spec.ProfileWindow(first_step=2, last_step=3, ranks=(0,))
            profile = profiling.ProfileSteps(window, Path())
            for step in range(5):
                profile.on_step_start(Loop(step, rank))
                profile.on_step_end(Loop(step, rank))
                if calls := asked():
                    logged.append(f"rank {rank}, step {step}, Nsight {nsight}: {calls}".replace("\n", "; "))
    logged.append(capsys.readouterr().out)
    assert_kept("trainer/callbacks.txt", "\n".join(logged))


def test_parameters_are_counted_over_all_ranks(trainer, monkeypatch):
    from trainer import ranks

    sizes = {"tensor_model": 4, "expert_model": 8, "expert_tensor": 2}
    state = {f"get_{way}_parallel_world_size": lambda size=size: size for way, size in sizes.items()}
    alone = SimpleNamespace(
        tensor=lambda value, **_: value,
        distributed=trainer.ranks.torch.distributed,
        int64=0,
        cuda=SimpleNamespace(),
    )
    alone.cuda.current_device = lambda: "cpu"
    group = {"get_pipeline_model_parallel_group": lambda: None}
    monkeypatch.setattr(ranks, "parallel_state", SimpleNamespace(**state, **group))
    monkeypatch.setattr(ranks, "torch", alone)

    def parameter(number, *, split=False, shared=False):
        return SimpleNamespace(numel=lambda: number, tensor_model_parallel=split, shared=shared)

    chunk = {
        "embedding": parameter(1, split=True),
        "norm": parameter(10),
        "mlp.experts.weight": parameter(100, split=True),
        "mlp.experts.bias": parameter(1000),
        "output": parameter(10**6, split=True, shared=True),
    }
    chunks = [SimpleNamespace(named_parameters=chunk.items), SimpleNamespace(named_parameters=lambda: [])]
    assert ranks.count_parameters(chunks) == 4 * 1 + 10 + 2 * 8 * 100 + 8 * 1000


def test_a_sample_has_the_same_tokens_everywhere(trainer):
    told = []
    for uniform in (False, True):
        samples = trainer.tokens.SyntheticTokens(5, 39, 7, attention_mask=False, uniform=uniform)
        told += ["".join(map(str, samples.tokens(index))) + "\n" for index in (0, 3)]
    assert_kept("trainer/tokens.txt", "".join(told))


def test_the_norm_of_the_mixer_is_that_of_its_kernel(trainer):
    from trainer.cpu.mamba_reference import ReferenceMambaMixer

    assert ReferenceMambaMixer().norm.epsilon == 1e-5, "as upstream's RMSNormGated has it"
