"""A stand-in for trainer/collectives.py, on a Slurm whose link from node3 to node7 is slow."""

import json
import os

if os.environ["RANK"] == "0":
    seconds = 0.14 if os.environ["SLURM_JOB_NODELIST"] == "node[3,7]" else 0.1
    for step in range(20):
        print(
            f"Training epoch 0, iteration {step}/19 | global_step: {step} | train_step_timing in s: {seconds}"
        )
    message = {"bytes": 1 << 22, "time_s": seconds, "bus_bandwidth_gb_s": 0.004 / seconds}
    print("steptime.collective", json.dumps({"collective": "all_reduce", "messages": [message]}))
