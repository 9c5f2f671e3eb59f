#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --partition=batch
#SBATCH --account=llm_bench
set -euo pipefail

# How this script ends is written down beside the log, for when Slurm does not know. So is Slurm's state of the
# job then: while it is ending the job, as at the time limit, the exit code can be any.
note_end() {
  local code=$? ended=/lustre/bench/experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_TIMESTAMP-37f33190c9/pretrain_llama3.1_8b_bf16_8/ended.json at state
  trap '' HUP INT QUIT TERM USR1 USR2
  set +e
  at=$(date +%s)
  state=$(timeout --signal=KILL 20 squeue --noheader --states=all "--jobs=$SLURM_JOB_ID" --format=%T 2>/dev/null)
  {
    printf '{"job_id": "%s", "exit_code": %d, "state": "%s", "started_at": %d, "ended_at": %d}\n' \
      "$SLURM_JOB_ID" "$code" "$state" $((at - SECONDS)) "$at" >"$ended.new" && mv -f -- "$ended.new" "$ended"
  } 2>/dev/null || echo "steptime: how this job ended could not be written to $ended" >&2
  exit "$code"
}
trap note_end EXIT

# Most Slurms signal this script and not what it has started: srun needs it, too.
srun_pid=
hand_on() {
  [[ -n $srun_pid ]] || exit $((128 + $(kill -l "$1")))
  interrupted=1
  kill -s "$1" "$srun_pid" 2>/dev/null || true
}
for signal in HUP INT QUIT TERM USR1 USR2; do
  trap "hand_on $signal" "$signal"
done

cd /lustre/bench/experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_TIMESTAMP-37f33190c9/pretrain_llama3.1_8b_bf16_8

# The ranks meet on the first node of the allocation, which is the one that runs this script. Where its name
# cannot be looked up, Slurm knows its address. Jobs that share a host need ports of their own.
MASTER_ADDR=$SLURMD_NODENAME
if ! getent ahosts "$MASTER_ADDR" >/dev/null; then
  MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
fi
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))

# Slurm hands on the shell of whoever submitted; where that finds Python and libraries is not the job's.
unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD
export NCCL_NVLS_ENABLE=0
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export NVTE_FLASH_ATTN=1
export NVTE_FUSED_ATTN=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export PYTHONNOUSERSITE=1
export STEPTIME_TRAINER=STAGED_TRAINER
export PYTHONSAFEPATH=1

srun \
  --export=ALL \
  --kill-on-bad-exit=1 \
  --wait=60 \
  --mpi=pmix \
  --container-image=STAGED_IMAGE \
  --container-mounts=/lustre/bench:/lustre/bench:ro,/lustre/bench/experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_TIMESTAMP-37f33190c9/pretrain_llama3.1_8b_bf16_8:/lustre/bench/experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_TIMESTAMP-37f33190c9/pretrain_llama3.1_8b_bf16_8 \
  --container-workdir=/lustre/bench/experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_TIMESTAMP-37f33190c9/pretrain_llama3.1_8b_bf16_8 \
  --container-env=NCCL_NVLS_ENABLE,TORCH_NCCL_AVOID_RECORD_STREAMS,NVTE_FLASH_ATTN,NVTE_FUSED_ATTN,CUDA_DEVICE_MAX_CONNECTIONS,NVTE_FWD_LAYERNORM_SM_MARGIN,NVTE_BWD_LAYERNORM_SM_MARGIN,PYTHONNOUSERSITE,STEPTIME_TRAINER,PYTHONSAFEPATH,MASTER_ADDR,MASTER_PORT \
  --container-writable \
  --no-container-mount-home \
  sh \
  -c \
  'export PYTHONPATH="$STEPTIME_TRAINER${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"' \
  steptime \
  python \
  -m \
  trainer \
  run.json \
  &
srun_pid=$! interrupted=1
while ((interrupted)); do # a signal ends `wait`, and not yet srun
  interrupted=0 ended_with=0
  wait "$srun_pid" || ended_with=$?
done
exit "$ended_with"
