#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --partition=batch
#SBATCH --account=llm_bench
#SBATCH --segment=2
set -euo pipefail

# How this script ends is written down beside the log, for when Slurm does not know. So is Slurm's state of the
# job then: while it is ending the job, as at the time limit, the exit code can be any.
note_end() {
  local code=$? ended=/lustre/bench/experiments/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512_TIMESTAMP-0503e64c83/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/ended.json at state
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

cd /lustre/bench/experiments/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512_TIMESTAMP-0503e64c83/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512

# The ranks meet on the first node of the allocation, which is the one that runs this script. Where its name
# cannot be looked up, Slurm knows its address. Jobs that share a host need ports of their own.
MASTER_ADDR=$SLURMD_NODENAME
if ! getent ahosts "$MASTER_ADDR" >/dev/null; then
  MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
fi
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))

# Slurm hands on the shell of whoever submitted; where that finds Python and libraries is not the job's.
unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD
export TOKENIZERS_PARALLELISM=False
export TRANSFORMERS_OFFLINE=1
export HF_HUB_OFFLINE=1
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_NET_GDR_C2C=1
export HF_HUB_CACHE=/lustre/bench/huggingface/hub
export PYTHONNOUSERSITE=1
export STEPTIME_TRAINER=STAGED_TRAINER:/opt/Megatron-Bridge/scripts/performance
export PYTHONSAFEPATH=1

srun \
  --export=ALL \
  --kill-on-bad-exit=1 \
  --wait=60 \
  --mpi=pmix \
  --container-image=STAGED_IMAGE \
  --container-mounts=/lustre/bench:/lustre/bench:ro,/lustre/bench/experiments/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512_TIMESTAMP-0503e64c83/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512:/lustre/bench/experiments/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512_TIMESTAMP-0503e64c83/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512 \
  --container-workdir=/lustre/bench/experiments/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512_TIMESTAMP-0503e64c83/pretrain_nemotron_3_lightning_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs2_gbs512 \
  --container-env=TOKENIZERS_PARALLELISM,TRANSFORMERS_OFFLINE,HF_HUB_OFFLINE,NCCL_NET_GDR_LEVEL,NCCL_NET_GDR_C2C,HF_HUB_CACHE,PYTHONNOUSERSITE,STEPTIME_TRAINER,PYTHONSAFEPATH,MASTER_ADDR,MASTER_PORT \
  --container-writable \
  --no-container-mount-home \
  sh \
  -c \
  'export PYTHONPATH="$STEPTIME_TRAINER${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"' \
  steptime \
  bash \
  -c \
  'node=$((SLURM_LOCALID / $1)); shift; bind=("--cpunodebind=$node" "--membind=$node"); if said=$(numactl "${bind[@]}" true 2>&1); then STEPTIME_NUMA_NODE=$node exec numactl "${bind[@]}" "$@"; fi; read -r why <<<"$said"; echo "steptime: rank $SLURM_PROCID is not bound to NUMA node $node: $why" >&2; exec "$@"' \
  numactl \
  2 \
  python \
  /opt/Megatron-Bridge/scripts/performance/bootstrap.py \
  --model_family_name=nemotronh \
  --model_recipe_name=nemotron_3_5_lightning \
  --gpu=gb200 \
  --num_gpus=8 \
  --compute_dtype=fp8_mx \
  --tensor_model_parallel_size=1 \
  --pipeline_model_parallel_size=1 \
  --context_parallel_size=1 \
  --micro_batch_size=2 \
  --global_batch_size=512 \
  --max_steps=50 \
  --save_config_filepath=ConfigContainer.yaml \
  --virtual_pipeline_model_parallel_size=None \
  --expert_model_parallel_size=8 \
  --expert_tensor_parallel_size=1 \
  &
srun_pid=$! interrupted=1
while ((interrupted)); do # a signal ends `wait`, and not yet srun
  interrupted=0 ended_with=0
  wait "$srun_pid" || ended_with=$?
done
exit "$ended_with"
