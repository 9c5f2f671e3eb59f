#!/usr/bin/env bash
set -euo pipefail

cd /state/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1790000000-29522da571/pretrain_llama3.1_tiny_fp32_2
exec env \
  OMP_NUM_THREADS=1 \
  OMP_PROC_BIND=close \
  PYTHONNOUSERSITE=1 \
  PYTHONPATH=/state/trainer/fedcba9876543210 \
  PYTHONSAFEPATH=1 \
  /state/venvs/trainer-0123456789abcdef/bin/python -m trainer.cpu_ranks run.json
