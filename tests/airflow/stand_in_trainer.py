"""A stand-in for the trainer: it trains no model, and prints lines in NeMo's form with made-up numbers.

It lets tests of the Airflow layer run real jobs in seconds: real processes on the real local cluster. Nothing
it prints is a measurement. Tests with the marker `trainer` train for real.

The run's environment says how it behaves: STAND_IN_STEP_S is the seconds per step, STAND_IN_PRINTED_S the
seconds it prints, and STAND_IN is out_of_memory, nan or hang. Of the runs with one STAND_IN_FIRST, a file
that does not exist, the first trains, and the others hang.
"""

import json
import os
import pathlib
import sys
import time


def main():
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return 0  # only rank 0 prints
    run = json.loads(pathlib.Path("run.json").read_text())
    recipe, behaviour = run["recipe"], os.environ.get("STAND_IN", "")
    parallelism = recipe["parallelism"]
    with pathlib.Path("started").open("a") as started:
        started.write(f"{os.getpid()}\n")
    say(
        "steptime.start "
        + json.dumps(
            {
                "schema": 1,
                "experiment": run["experiment"],
                "world_size": parallelism["tensor"] * parallelism["data"],
                "tensor_parallel": parallelism["tensor"],
                "pipeline_parallel": parallelism["pipeline"],
                "context_parallel": parallelism["context"],
                "data_parallel": parallelism["data"],
                "expert_parallel": parallelism["expert"] or 1,
                "micro_batch_size": recipe["micro_batch_size"],
                "global_batch_size": recipe["global_batch_size"],
                "seq_length": recipe["model"]["seq_length"],
                "num_layers": recipe["model"]["num_layers"],
                "num_parameters": 1,
                "device": "cpu",
                "versions": {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"},
                "node_names": ["localhost"],
            }
        )
    )
    gbs, first, end = recipe["global_batch_size"], run["first_step"], run["max_steps"]
    if run["mode"] == "checkpoint_load":
        weights = pathlib.Path(run["checkpoint_path"]) / "weights"
        if not any(weights.glob("*.distcp")):
            say(f"no checkpoint at {weights}")
            return 1
        say(
            f"[NeMo I 2026-11-21 00:00:00 nemo_logging:310] Global Checkpoint Load : Rank : 0 : "
            f"Start time : {time.time():.3f}s : Time spent in load_checkpoint: 0.187s"
        )
        say(
            "steptime.resumed "
            + json.dumps(
                {
                    "checkpoint_path": run["checkpoint_path"],
                    "global_step": first,
                    "consumed_samples": first * gbs,
                }
            )
        )
    if behaviour == "hang" or not is_first():
        time.sleep(3600)
    printed_s = os.environ.get("STAND_IN_PRINTED_S", "0.4846")
    for step in range(first, end):
        time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0.02")))
        if behaviour == "out_of_memory" and step == 3:
            say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
            return 1
        loss = "nan" if behaviour == "nan" and step >= 12 else f"{8.4 - 0.01 * step:.3f}"
        say(
            f"Training epoch 0, iteration {step - first}/{end - first - 1} | lr: 3.042e-05 "
            f"| global_batch_size: {gbs} | global_step: {step} "
            f"| max_memory_reserved: 890716160 | max_memory_allocated: 890716160 "
            f"| reduced_train_loss: {loss} | train_step_timing in s: {printed_s} "
            f"| consumed_samples: {(step + 1) * gbs}"
        )
    if run["mode"] == "checkpoint_save":
        weights = pathlib.Path("code/nemo_experiments/default/checkpoints/default--step/weights")
        weights.mkdir(parents=True)
        (weights / "__0_0.distcp").write_bytes(b"made up")
        say(
            f"[NeMo I 2026-11-21 00:00:00 nemo_logging:232] Global Checkpoint Save : Rank: 0 : "
            f"Iteration: {end - 1} : Start time: {time.time():.3f}s : Save duration: 0.146s"
        )
    say(
        "steptime.result "
        + json.dumps(
            {
                "state": "completed",
                "global_step": end - 1,
                "steps_trained": end - first,
                "peak_memory_bytes": 890716160,
                "training_s": 1.0,
            }
        )
    )
    return 0


def is_first():
    if "STAND_IN_FIRST" not in os.environ:
        return True
    try:
        pathlib.Path(os.environ["STAND_IN_FIRST"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def say(line):
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
