#!/usr/bin/env bash
#SBATCH --nodes=64
#SBATCH --ntasks=256
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --partition=batch
#SBATCH --account=llm_bench
#SBATCH --segment=16
set -euo pipefail

# How this script ends is written down beside the log, for when Slurm does not know. So is Slurm's state of the
# job then: while it is ending the job, as at the time limit, the exit code can be any.
note_end() {
  local code=$? ended=/lustre/bench/experiments/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys_TIMESTAMP-f4a8acb3a6/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/ended.json at state
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

cd /lustre/bench/experiments/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys_TIMESTAMP-f4a8acb3a6/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys
mkdir -p nsys_profile

# The ranks meet on the first node of the allocation, which is the one that runs this script. Where its name
# cannot be looked up, Slurm knows its address. Jobs that share a host need ports of their own.
MASTER_ADDR=$SLURMD_NODENAME
if ! getent ahosts "$MASTER_ADDR" >/dev/null; then
  MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
fi
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))

# Slurm hands on the shell of whoever submitted; where that finds Python and libraries is not the job's.
unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_HIGH_PRIORITY=1
export NCCL_NVLS_ENABLE=0
export TOKENIZERS_PARALLELISM=False
export TRANSFORMERS_OFFLINE=1
export HF_HUB_OFFLINE=1
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_NET_GDR_C2C=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_GRAPH_REGISTER=0
export CUDA_DEVICE_MAX_CONNECTIONS=32
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
export NVTE_BWD_LAYERNORM_SM_MARGIN=16
export NCCL_P2P_NET_CHUNKSIZE=2097152
export NVTE_NORM_FWD_USE_CUDNN=1
export NVTE_NORM_BWD_USE_CUDNN=1
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
  --container-mounts=/lustre/bench:/lustre/bench:ro,/lustre/bench/experiments/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys_TIMESTAMP-f4a8acb3a6/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys:/lustre/bench/experiments/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys_TIMESTAMP-f4a8acb3a6/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys \
  --container-workdir=/lustre/bench/experiments/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys_TIMESTAMP-f4a8acb3a6/pretrain_llama31_405b_fp8_cs_gpus256_tp4_pp16_cp1_vp4_ep1_etp4_mbs1_gbs1536_nsys \
  --container-env=TORCH_NCCL_AVOID_RECORD_STREAMS,TORCH_NCCL_HIGH_PRIORITY,NCCL_NVLS_ENABLE,TOKENIZERS_PARALLELISM,TRANSFORMERS_OFFLINE,HF_HUB_OFFLINE,NCCL_NET_GDR_LEVEL,NCCL_NET_GDR_C2C,PYTORCH_CUDA_ALLOC_CONF,NCCL_GRAPH_REGISTER,CUDA_DEVICE_MAX_CONNECTIONS,NVTE_FWD_LAYERNORM_SM_MARGIN,NVTE_BWD_LAYERNORM_SM_MARGIN,NCCL_P2P_NET_CHUNKSIZE,NVTE_NORM_FWD_USE_CUDNN,NVTE_NORM_BWD_USE_CUDNN,HF_HUB_CACHE,PYTHONNOUSERSITE,STEPTIME_TRAINER,PYTHONSAFEPATH,MASTER_ADDR,MASTER_PORT \
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
  bash \
  -c \
  'if command -v nsys >/dev/null; then export STEPTIME_NSIGHT=1; if [ "$SLURM_LOCALID" = 0 ]; then set -- --gpu-metrics-devices=all "$@"; fi; exec nsys profile "$@"; fi; while [[ $1 == --* ]]; do shift; done; exec "$@"' \
  nsys \
  --sample=none \
  --trace=cuda-sw,nvtx \
  '--output=nsys_profile/profile_%q{SLURM_JOB_ID}_%q{SLURM_NODEID}_%q{SLURM_PROCID}' \
  --force-overwrite=true \
  --capture-range=cudaProfilerApi \
  --capture-range-end=stop \
  --cuda-graph-trace=node \
  --cuda-event-trace=false \
  python \
  /opt/Megatron-Bridge/scripts/performance/run_script.py \
  --model_family_name=llama \
  --model_recipe_name=llama31_405b \
  --gpu=gb200 \
  --num_gpus=256 \
  --compute_dtype=fp8_cs \
  --tensor_model_parallel_size=4 \
  --pipeline_model_parallel_size=16 \
  --context_parallel_size=1 \
  --micro_batch_size=1 \
  --global_batch_size=1536 \
  --max_steps=50 \
  --save_config_filepath=ConfigContainer.yaml \
  --config_variant=v2 \
  --virtual_pipeline_model_parallel_size=4 \
  train.manual_gc=true \
  train.manual_gc_interval=100 \
  profiling.use_nsys_profiler=true \
  profiling.profile_step_start=10 \
  profiling.profile_step_end=12 \
  'profiling.profile_ranks=[0]' \
  profiling.record_shapes=false \
  &
srun_pid=$! interrupted=1
while ((interrupted)); do # a signal ends `wait`, and not yet srun
  interrupted=0 ended_with=0
  wait "$srun_pid" || ended_with=$?
done
exit "$ended_with"
