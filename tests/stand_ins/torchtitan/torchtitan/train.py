"""A stand-in for torchtitan: it accepts its options and its toml, prints its lines, and trains nothing."""

import os
import sys
import tomllib
from pathlib import Path

given = dict(text.removeprefix("--").split("=", 1) for text in sys.argv[1:])
config = tomllib.loads(Path(given["job.config_file"]).read_text())
steps, length = int(given["training.steps"]), int(given["training.seq_len"])
batch, ranks = int(given["training.global_batch_size"]), int(os.environ["WORLD_SIZE"])
assert config["metrics"]["log_freq"] == 1
if os.environ["RANK"] == "0":
    ways = f"pp=1, dp_replicate=1, dp_shard={given['parallelism.data_parallel_shard_degree']}, cp=1, "
    print(f"Building device mesh with parallelism: {ways}tp={given['parallelism.tensor_parallel_degree']}")
    print(
        f"Trainer is initialized with local batch size {given['training.local_batch_size']}, "
        f"global batch size {batch}, gradient accumulation steps 1, sequence length {length}, "
        f"total steps {steps} (warmup 2)"
    )
    for step in range(1, steps + 1):
        rate = batch * length // ranks * 2  # half a second per step
        print(f"[titan] step: {step:2}  loss:  3.2  grad_norm:  0.8  memory:  1.0GiB(1.0%)  tps: {rate:,}")
    print("Training completed")
