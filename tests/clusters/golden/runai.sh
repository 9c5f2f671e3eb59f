#!/usr/bin/env bash
set -euo pipefail

cd /nemo-workspace/steptime/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1790000000-29522da571/pretrain_llama3.1_tiny_fp32_2
# Of several pods, Run:ai's PyTorch operator gives each their number, its own rank, and where they meet.
pods=${WORLD_SIZE:-1}
ranks=2
if ((pods == 1)); then
  meeting=(--standalone --local-addr=127.0.0.1)
else
  meeting=(
    --nnodes="$pods" --node-rank="$RANK"
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"
  )
fi
exec env \
  OMP_NUM_THREADS=1 \
  OMP_PROC_BIND=close \
  WORDS='a '"'"'b'"'"' $(c)' \
  PYTHONNOUSERSITE=1 \
  PYTHONPATH=/nemo-workspace/trainer/fedcba9876543210 \
  PYTHONSAFEPATH=1 \
  /nemo-workspace/venvs/trainer-0123456789abcdef/bin/python -m torch.distributed.run \
  "${meeting[@]}" --nproc-per-node="$((ranks / pods))" \
  -m trainer run.json
