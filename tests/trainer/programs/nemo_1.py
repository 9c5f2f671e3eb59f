"""A stand-in for NeMo 1's program in its image: it accepts the same command line and prints the same bar.

Hydra reads the named config and the overrides, and Megatron sets up the parallelism, as in the image.
Nothing is trained: the numbers in the bars are made up.
"""

import argparse
import json
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from megatron.core import parallel_state
from omegaconf import OmegaConf

parser = argparse.ArgumentParser()
parser.add_argument("--config-path", required=True)
parser.add_argument("--config-name", required=True)
parser.add_argument("overrides", nargs="*")
given = parser.parse_args()
with initialize_config_dir(given.config_path, version_base=None):
    config = compose(given.config_name, overrides=given.overrides)
Path("config.json").write_text(json.dumps(OmegaConf.to_container(config)))
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
parallel_state.initialize_model_parallel(tensor_model_parallel_size=config.model.tensor_model_parallel_size)
last = config.trainer.max_steps
for done in range(1, last + 1):
    print(
        f"\rEpoch 0: : {100 * done // last}%|##| {done}/{last} [00:01<00:00, reduced_train_loss=7.310, "
        f"global_step={done - 1:.2f}, consumed_samples={done * config.model.global_batch_size:.1f}, "
        "train_step_timing in s=3.590]",
        end="",
    )
print()
