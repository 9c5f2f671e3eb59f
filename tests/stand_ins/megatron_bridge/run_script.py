"""A stand-in for a rank of Megatron-Bridge's launch script: it takes the arguments of the release that
STAND_IN_RELEASE names, trains nothing, and prints and saves what upstream would, each step in 2 s."""

import os
import sys
from pathlib import Path

from argument_parser import parser_of

STEP_S, TFLOPS = 2.0, 400.0


def main() -> None:
    arguments, rest = parser_of(os.environ["STAND_IN_RELEASE"]).parse_known_args()
    if strange := [text for text in rest if text.startswith("-") or "=" not in text]:
        sys.exit(f"no arguments of this release: {strange}")
    overrides = dict(text.split("=", 1) for text in rest)
    save = getattr(arguments, "save_dir", None) or overrides.get("checkpoint.save")
    load = getattr(arguments, "load_dir", None) or overrides.get("checkpoint.load")
    last, batch, first = arguments.max_steps, arguments.global_batch_size, 0
    if load:
        first = int((Path(load) / "latest_train_state.pt").read_text())
        print(f"  successfully loaded checkpoint from {load} [ t 0/1, p 0/1 ] at iteration {first}")
    for step in range(first + 1, last + 1):
        print(f"Step Time : {STEP_S}s GPU utilization: {TFLOPS}MODEL_TFLOP/s/GPU")
        print(
            f" [2026-03-01 10:00:{step % 60:02}.000000] iteration {step:8}/{last:8} |"
            f" consumed samples: {step * batch:12} | elapsed time per iteration (ms): {1000 * STEP_S:.1f} |"
            f" learning rate: 1.0E-05 | global batch size: {batch:5} |"
            " lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 2.0 | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |"
        )
    if save:
        folder = Path(save)
        (folder / f"iter_{last:07}").mkdir(parents=True)
        print(f"saving checkpoint at iteration {last:7d} to {save} in torch_dist format")
        (folder / "latest_train_state.pt").write_text(str(last))
        print(f"  successfully saved checkpoint from iteration {last:7d} to {save} [ t 1/1, p 1/1 ]")


if __name__ == "__main__":
    main()
