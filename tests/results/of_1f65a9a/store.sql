BEGIN TRANSACTION;
CREATE TABLE checkpoints (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	iteration BIGINT, 
	started_at DOUBLE, 
	duration_s DOUBLE, 
	asynchronous BOOLEAN NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES(2,0,'save',19,1795518873.431,0.146,0);
INSERT INTO "checkpoints" VALUES(3,0,'load',NULL,1795518880.006,0.187,0);
CREATE TABLE readings (
	run_id INTEGER NOT NULL, 
	measurement JSON, 
	log JSON NOT NULL, 
	CONSTRAINT pk_readings PRIMARY KEY (run_id), 
	CONSTRAINT fk_readings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "readings" VALUES(1,'{"window": {"first": 10, "last": 19}, "steps_in_window": 10, "step_time_mean_s": 0.48460000000000003, "step_time_median_s": 0.4846, "step_time_std_s": 0.0, "tokens_per_s": 4226.16591002889, "tokens_per_s_per_gpu": 2113.082955014445, "days_per_1t_tokens": 2738.670066550926, "model_tflops_per_gpu": 0.03489771714403632, "peak_tflops_per_gpu": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "mfu_percent": 3.489771714403632, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "checkpoint_save_s": null, "checkpoint_load_s": null}','{"path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1795518835-72dd608ad6/pretrain_llama3.1_tiny_fp32_2/log-pretrain_llama3.1_tiny_fp32_2.out", "dialect": "nemo2", "bytes_read": 5490, "problems": [], "started": {"schema": 1, "experiment": "pretrain_llama3.1_tiny_fp32_2", "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "num_parameters": 1, "device": "cpu", "peak_tflops_per_rank": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "versions": {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"}, "node_names": ["localhost"]}, "resumed": null, "ended": {"state": "completed", "global_step": 19, "steps_trained": 20, "peak_memory_bytes": 890716160, "training_s": 1.0}}');
INSERT INTO "readings" VALUES(2,'{"window": {"first": 10, "last": 19}, "steps_in_window": 10, "step_time_mean_s": 0.48460000000000003, "step_time_median_s": 0.4846, "step_time_std_s": 0.0, "tokens_per_s": 4226.16591002889, "tokens_per_s_per_gpu": 2113.082955014445, "days_per_1t_tokens": 2738.670066550926, "model_tflops_per_gpu": 0.03489771714403632, "peak_tflops_per_gpu": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "mfu_percent": 3.489771714403632, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "checkpoint_save_s": 0.146, "checkpoint_load_s": null}','{"path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_save.out", "dialect": "nemo2", "bytes_read": 5655, "problems": [], "started": {"schema": 1, "experiment": "pretrain_llama3.1_tiny_fp32_2_checkpoint_save", "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "num_parameters": 1, "device": "cpu", "peak_tflops_per_rank": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "versions": {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"}, "node_names": ["localhost"]}, "resumed": null, "ended": {"state": "completed", "global_step": 19, "steps_trained": 20, "peak_memory_bytes": 890716160, "training_s": 1.0}}');
INSERT INTO "readings" VALUES(3,'{"window": {"first": 20, "last": 20}, "steps_in_window": 1, "step_time_mean_s": 0.4846, "step_time_median_s": 0.4846, "step_time_std_s": null, "tokens_per_s": 4226.16591002889, "tokens_per_s_per_gpu": 2113.082955014445, "days_per_1t_tokens": 2738.670066550926, "model_tflops_per_gpu": 0.034897717144036326, "peak_tflops_per_gpu": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "mfu_percent": 3.4897717144036324, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "checkpoint_save_s": null, "checkpoint_load_s": 0.187}','{"path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/pretrain_llama3.1_tiny_fp32_2_checkpoint_load_1795518835-75f7a29225/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_load.out", "dialect": "nemo2", "bytes_read": 1381, "problems": [], "started": {"schema": 1, "experiment": "pretrain_llama3.1_tiny_fp32_2_checkpoint_load", "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "num_parameters": 1, "device": "cpu", "peak_tflops_per_rank": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "versions": {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"}, "node_names": ["localhost"]}, "resumed": {"checkpoint_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/code/nemo_experiments/default/checkpoints/default--step", "global_step": 20, "consumed_samples": 320}, "ended": {"state": "completed", "global_step": 20, "steps_trained": 1, "peak_memory_bytes": 890716160, "training_s": 1.0}}');
INSERT INTO "readings" VALUES(4,'{"window": {"first": 10, "last": 19}, "steps_in_window": 10, "step_time_mean_s": 0.48460000000000003, "step_time_median_s": 0.4846, "step_time_std_s": 0.0, "tokens_per_s": 2113.082955014445, "tokens_per_s_per_gpu": 2113.082955014445, "days_per_1t_tokens": 5477.340133101852, "model_tflops_per_gpu": 0.03489771714403632, "peak_tflops_per_gpu": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "mfu_percent": 3.489771714403632, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "checkpoint_save_s": null, "checkpoint_load_s": null}','{"path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_1/pretrain_llama3.1_tiny_fp32_1_1795518911-dcef829e96/pretrain_llama3.1_tiny_fp32_1/log-pretrain_llama3.1_tiny_fp32_1.out", "dialect": "nemo2", "bytes_read": 5446, "problems": [{"kind": "nan_loss", "message": "the loss is NaN at global steps 12 to 19", "fatal": true, "steps": [12, 13, 14, 15, 16, 17, 18, 19]}], "started": {"schema": 1, "experiment": "pretrain_llama3.1_tiny_fp32_1", "world_size": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 1, "micro_batch_size": 1, "global_batch_size": 8, "seq_length": 128, "num_layers": 2, "num_parameters": 1, "device": "cpu", "peak_tflops_per_rank": 1.0, "peak_source": "made up by the tests'' stand-in trainer", "versions": {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"}, "node_names": ["localhost"]}, "resumed": null, "ended": {"state": "completed", "global_step": 19, "steps_trained": 20, "peak_memory_bytes": 890716160, "training_s": 1.0}}');
CREATE TABLE records (
	run_id INTEGER NOT NULL, 
	content TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	CONSTRAINT pk_records PRIMARY KEY (run_id), 
	CONSTRAINT fk_records_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "records" VALUES(1,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "pretrain_llama3.1_tiny_fp32_2-72dd608ad6-1",
    "job_id": "724d7c1e4fba4437bb3175fe34d49ad4",
    "directory": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1795518835-72dd608ad6/pretrain_llama3.1_tiny_fp32_2",
    "log_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1795518835-72dd608ad6/pretrain_llama3.1_tiny_fp32_2/log-pretrain_llama3.1_tiny_fp32_2.out",
    "submitted_at": 1795518873.3303938
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1795518873.5839498,
    "ended_at": 1795518874.121846,
    "nodes": [
      "vm"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "none",
    "megatron_core": "none",
    "torch": "none",
    "python": "3"
  },
  "run": {
    "schema_version": 1,
    "experiment": "pretrain_llama3.1_tiny_fp32_2",
    "recipe": {
      "workload": "llama3.1-25.04",
      "size": "tiny",
      "dtype": "fp32",
      "gpu_type": "cpu",
      "scaling": "weak",
      "proxy": false,
      "model": {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 256,
        "ffn_hidden_size": 768,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 4096,
        "seq_length": 128,
        "hybrid": null
      },
      "parallelism": {
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "virtual_pipeline": null,
        "data": 2
      },
      "micro_batch_size": 1,
      "global_batch_size": 16,
      "gpus_per_node": 4,
      "image": null,
      "fp8_recipe": null,
      "cuda_graphs": false,
      "tp_comm_overlap": false,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "performance",
    "first_step": 0,
    "max_steps": 20,
    "window": {
      "first": 10,
      "last": 19
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {},
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": 2113929216.0,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "1f65a9a851c41a49a654fe2979d0ec2621d1984d",
    "git_clean": false,
    "staged": {
      "python": "/srv/old/test_made0/stand-in-interpreter",
      "venv_lock_sha256": null,
      "trainer_path": "/srv/old/test_made0",
      "trainer_sha256": "0000000000000000000000000000000000000000000000000000000000000000",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "proxy": false,
      "gpus": "2",
      "scaling": "weak",
      "repeats": 1,
      "checkpoint": true,
      "save_checkpoint": false,
      "async_save": false,
      "profile": false,
      "gpu_metrics": false,
      "nccl_trace": false,
      "cluster": "local",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONNOUSERSITE": "1",
      "PYTHONPATH": "/srv/old/test_made0",
      "PYTHONSAFEPATH": "1"
    },
    "script": "#!/usr/bin/env bash\nset -euo pipefail\n\ncd /srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1795518835-72dd608ad6/pretrain_llama3.1_tiny_fp32_2\nexec env \\\n  OMP_NUM_THREADS=1 \\\n  PYTHONNOUSERSITE=1 \\\n  PYTHONPATH=/srv/old/test_made0 \\\n  PYTHONSAFEPATH=1 \\\n  /srv/old/test_made0/stand-in-interpreter -m torch.distributed.run \\\n  --standalone --local-addr=127.0.0.1 --nproc-per-node=2 \\\n  -m trainer run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-24T11:13:55.981475+00:00",
    "task_id": "performance.wait",
    "map_index": 0
  }
}
','bf1f0ac7481ac7b391615b46cd06e5d5209d1d069be80b68210ec8ef4f2035a4');
INSERT INTO "records" VALUES(2,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "pretrain_llama3.1_tiny_fp32_2_checkpoint_save-1afb2671f0-1",
    "job_id": "6335ccd71f894c04bb0453598092dbe4",
    "directory": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save",
    "log_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_save.out",
    "submitted_at": 1795518872.663325
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1795518872.8653455,
    "ended_at": 1795518873.4350214,
    "nodes": [
      "vm"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "none",
    "megatron_core": "none",
    "torch": "none",
    "python": "3"
  },
  "run": {
    "schema_version": 1,
    "experiment": "pretrain_llama3.1_tiny_fp32_2_checkpoint_save",
    "recipe": {
      "workload": "llama3.1-25.04",
      "size": "tiny",
      "dtype": "fp32",
      "gpu_type": "cpu",
      "scaling": "weak",
      "proxy": false,
      "model": {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 256,
        "ffn_hidden_size": 768,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 4096,
        "seq_length": 128,
        "hybrid": null
      },
      "parallelism": {
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "virtual_pipeline": null,
        "data": 2
      },
      "micro_batch_size": 1,
      "global_batch_size": 16,
      "gpus_per_node": 4,
      "image": null,
      "fp8_recipe": null,
      "cuda_graphs": false,
      "tp_comm_overlap": false,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "checkpoint_save",
    "first_step": 0,
    "max_steps": 20,
    "window": {
      "first": 10,
      "last": 19
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {},
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": 2113929216.0,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "1f65a9a851c41a49a654fe2979d0ec2621d1984d",
    "git_clean": false,
    "staged": {
      "python": "/srv/old/test_made0/stand-in-interpreter",
      "venv_lock_sha256": null,
      "trainer_path": "/srv/old/test_made0",
      "trainer_sha256": "0000000000000000000000000000000000000000000000000000000000000000",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "proxy": false,
      "gpus": "2",
      "scaling": "weak",
      "repeats": 1,
      "checkpoint": true,
      "save_checkpoint": false,
      "async_save": false,
      "profile": false,
      "gpu_metrics": false,
      "nccl_trace": false,
      "cluster": "local",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONNOUSERSITE": "1",
      "PYTHONPATH": "/srv/old/test_made0",
      "PYTHONSAFEPATH": "1"
    },
    "script": "#!/usr/bin/env bash\nset -euo pipefail\n\ncd /srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save\nexec env \\\n  OMP_NUM_THREADS=1 \\\n  PYTHONNOUSERSITE=1 \\\n  PYTHONPATH=/srv/old/test_made0 \\\n  PYTHONSAFEPATH=1 \\\n  /srv/old/test_made0/stand-in-interpreter -m torch.distributed.run \\\n  --standalone --local-addr=127.0.0.1 --nproc-per-node=2 \\\n  -m trainer run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-24T11:13:55.981475+00:00",
    "task_id": "checkpoint.save.wait",
    "map_index": 0
  }
}
','7ae9946b4399f7cfadd8e7a422633647686090c08ea454558909a53f90ab2ac9');
INSERT INTO "records" VALUES(3,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "pretrain_llama3.1_tiny_fp32_2_checkpoint_load-75f7a29225-1",
    "job_id": "dadce271feaf46368b112ef143176007",
    "directory": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/pretrain_llama3.1_tiny_fp32_2_checkpoint_load_1795518835-75f7a29225/pretrain_llama3.1_tiny_fp32_2_checkpoint_load",
    "log_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/pretrain_llama3.1_tiny_fp32_2_checkpoint_load_1795518835-75f7a29225/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_load.out",
    "submitted_at": 1795518879.6218567
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1795518879.8724158,
    "ended_at": 1795518880.0384748,
    "nodes": [
      "vm"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "none",
    "megatron_core": "none",
    "torch": "none",
    "python": "3"
  },
  "run": {
    "schema_version": 1,
    "experiment": "pretrain_llama3.1_tiny_fp32_2_checkpoint_load",
    "recipe": {
      "workload": "llama3.1-25.04",
      "size": "tiny",
      "dtype": "fp32",
      "gpu_type": "cpu",
      "scaling": "weak",
      "proxy": false,
      "model": {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 256,
        "ffn_hidden_size": 768,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 4096,
        "seq_length": 128,
        "hybrid": null
      },
      "parallelism": {
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "virtual_pipeline": null,
        "data": 2
      },
      "micro_batch_size": 1,
      "global_batch_size": 16,
      "gpus_per_node": 4,
      "image": null,
      "fp8_recipe": null,
      "cuda_graphs": false,
      "tp_comm_overlap": false,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "checkpoint_load",
    "first_step": 20,
    "max_steps": 21,
    "window": {
      "first": 20,
      "last": 20
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/code/nemo_experiments/default/checkpoints/default--step",
    "async_save": false,
    "environment": {},
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": 2113929216.0,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "1f65a9a851c41a49a654fe2979d0ec2621d1984d",
    "git_clean": false,
    "staged": {
      "python": "/srv/old/test_made0/stand-in-interpreter",
      "venv_lock_sha256": null,
      "trainer_path": "/srv/old/test_made0",
      "trainer_sha256": "0000000000000000000000000000000000000000000000000000000000000000",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "proxy": false,
      "gpus": "2",
      "scaling": "weak",
      "repeats": 1,
      "checkpoint": true,
      "save_checkpoint": false,
      "async_save": false,
      "profile": false,
      "gpu_metrics": false,
      "nccl_trace": false,
      "cluster": "local",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONNOUSERSITE": "1",
      "PYTHONPATH": "/srv/old/test_made0",
      "PYTHONSAFEPATH": "1"
    },
    "script": "#!/usr/bin/env bash\nset -euo pipefail\n\ncd /srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/pretrain_llama3.1_tiny_fp32_2_checkpoint_load_1795518835-75f7a29225/pretrain_llama3.1_tiny_fp32_2_checkpoint_load\nexec env \\\n  OMP_NUM_THREADS=1 \\\n  PYTHONNOUSERSITE=1 \\\n  PYTHONPATH=/srv/old/test_made0 \\\n  PYTHONSAFEPATH=1 \\\n  /srv/old/test_made0/stand-in-interpreter -m torch.distributed.run \\\n  --standalone --local-addr=127.0.0.1 --nproc-per-node=2 \\\n  -m trainer run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-24T11:13:55.981475+00:00",
    "task_id": "checkpoint.load.wait",
    "map_index": 0
  }
}
','4802f1e1dac45d1916b5fc21c60fb52af6d5c941e7814388a8f882e036b6dc24');
INSERT INTO "records" VALUES(4,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "pretrain_llama3.1_tiny_fp32_1-dcef829e96-1",
    "job_id": "ed11dd1c00524bf1aa7cc813dce2a198",
    "directory": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_1/pretrain_llama3.1_tiny_fp32_1_1795518911-dcef829e96/pretrain_llama3.1_tiny_fp32_1",
    "log_path": "/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_1/pretrain_llama3.1_tiny_fp32_1_1795518911-dcef829e96/pretrain_llama3.1_tiny_fp32_1/log-pretrain_llama3.1_tiny_fp32_1.out",
    "submitted_at": 1795518928.4246469
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1795518928.8072822,
    "ended_at": 1795518929.433806,
    "nodes": [
      "vm"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "none",
    "megatron_core": "none",
    "torch": "none",
    "python": "3"
  },
  "run": {
    "schema_version": 1,
    "experiment": "pretrain_llama3.1_tiny_fp32_1",
    "recipe": {
      "workload": "llama3.1-25.04",
      "size": "tiny",
      "dtype": "fp32",
      "gpu_type": "cpu",
      "scaling": "weak",
      "proxy": false,
      "model": {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 256,
        "ffn_hidden_size": 768,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 4096,
        "seq_length": 128,
        "hybrid": null
      },
      "parallelism": {
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "virtual_pipeline": null,
        "data": 1
      },
      "micro_batch_size": 1,
      "global_batch_size": 8,
      "gpus_per_node": 4,
      "image": null,
      "fp8_recipe": null,
      "cuda_graphs": false,
      "tp_comm_overlap": false,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "performance",
    "first_step": 0,
    "max_steps": 20,
    "window": {
      "first": 10,
      "last": 19
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {
      "STAND_IN": "nan"
    },
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": 2113929216.0,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "1f65a9a851c41a49a654fe2979d0ec2621d1984d",
    "git_clean": false,
    "staged": {
      "python": "/srv/old/test_made0/stand-in-interpreter",
      "venv_lock_sha256": null,
      "trainer_path": "/srv/old/test_made0",
      "trainer_sha256": "0000000000000000000000000000000000000000000000000000000000000000",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "proxy": false,
      "gpus": "1",
      "scaling": "weak",
      "repeats": 1,
      "checkpoint": false,
      "save_checkpoint": false,
      "async_save": false,
      "profile": false,
      "gpu_metrics": false,
      "nccl_trace": false,
      "cluster": "local",
      "environment": {
        "STAND_IN": "nan"
      }
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "STAND_IN": "nan",
      "PYTHONNOUSERSITE": "1",
      "PYTHONPATH": "/srv/old/test_made0",
      "PYTHONSAFEPATH": "1"
    },
    "script": "#!/usr/bin/env bash\nset -euo pipefail\n\ncd /srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_1/pretrain_llama3.1_tiny_fp32_1_1795518911-dcef829e96/pretrain_llama3.1_tiny_fp32_1\nexec env \\\n  OMP_NUM_THREADS=1 \\\n  STAND_IN=nan \\\n  PYTHONNOUSERSITE=1 \\\n  PYTHONPATH=/srv/old/test_made0 \\\n  PYTHONSAFEPATH=1 \\\n  /srv/old/test_made0/stand-in-interpreter -m torch.distributed.run \\\n  --standalone --local-addr=127.0.0.1 --nproc-per-node=1 \\\n  -m trainer run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-24T11:15:11.402333+00:00",
    "task_id": "performance.wait",
    "map_index": 0
  }
}
','4c5b252ee8c1180739932b00c9f924d2eb9f42081070c4d83199001c1244fb14');
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	job_name TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	size TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	gpu_type TEXT NOT NULL, 
	scaling TEXT NOT NULL, 
	gpus INTEGER NOT NULL, 
	mode TEXT NOT NULL, 
	label TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT, 
	global_batch_size INTEGER NOT NULL, 
	micro_batch_size INTEGER NOT NULL, 
	tensor_parallel INTEGER NOT NULL, 
	pipeline_parallel INTEGER NOT NULL, 
	context_parallel INTEGER NOT NULL, 
	data_parallel INTEGER NOT NULL, 
	window TEXT NOT NULL, 
	steps_in_window INTEGER, 
	step_time_mean_s DOUBLE, 
	step_time_median_s DOUBLE, 
	step_time_std_s DOUBLE, 
	tokens_per_s DOUBLE, 
	tokens_per_s_per_gpu DOUBLE, 
	mfu_percent DOUBLE, 
	flops_formula TEXT NOT NULL, 
	days_per_1t_tokens DOUBLE, 
	peak_tflops_per_gpu DOUBLE, 
	checkpoint_save_s DOUBLE, 
	checkpoint_load_s DOUBLE, 
	submitted_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	queue_wait_s DOUBLE, 
	dag_id TEXT, 
	dag_run_id TEXT, 
	map_index INTEGER, 
	log_path TEXT NOT NULL, 
	published_at DOUBLE NOT NULL, 
	task_id TEXT, 
	proxy BOOLEAN NOT NULL, 
	repeat INTEGER NOT NULL, 
	warnings TEXT, 
	content_sha256 TEXT NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT uq_runs_job_name UNIQUE (job_name)
);
INSERT INTO "runs" VALUES(1,'pretrain_llama3.1_tiny_fp32_2-72dd608ad6-1','llama3.1-25.04','tiny','fp32','cpu','weak',2,'performance','tiny·fp32·2','local','valid',NULL,16,1,1,1,1,2,'10:19',10,4.8460000000000003073e-01,0.4846,0.0,4226.16591002889,2.11308295501444490574e+03,3.48977171440363198584e+00,'llama3.1-25.04',2.7386700665509260944e+03,1.0,NULL,NULL,1.79551887333039379116e+09,1.79551887358394980428e+09,1.79551887412184596058e+09,2.53556013107299804687e-01,'llama31','manual__2026-11-24T11:13:55.981475+00:00',0,'/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2/pretrain_llama3.1_tiny_fp32_2_1795518835-72dd608ad6/pretrain_llama3.1_tiny_fp32_2/log-pretrain_llama3.1_tiny_fp32_2.out',1.79551890538678288458e+09,'performance.wait',0,1,NULL,'685020c03428b5a44d967420a1c8b97e14610a6c12bb1bbb2328b7903342f36e');
INSERT INTO "runs" VALUES(2,'pretrain_llama3.1_tiny_fp32_2_checkpoint_save-1afb2671f0-1','llama3.1-25.04','tiny','fp32','cpu','weak',2,'checkpoint_save','tiny·fp32·2·checkpoint save','local','valid',NULL,16,1,1,1,1,2,'10:19',10,4.8460000000000003073e-01,0.4846,0.0,4226.16591002889,2.11308295501444490574e+03,3.48977171440363198584e+00,'llama3.1-25.04',2.7386700665509260944e+03,1.0,0.146,NULL,1.79551887266332507132e+09,1.79551887286534547806e+09,1.79551887343502140047e+09,2.02020406723022460937e-01,'llama31','manual__2026-11-24T11:13:55.981475+00:00',0,'/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/pretrain_llama3.1_tiny_fp32_2_checkpoint_save_1795518835-1afb2671f0/pretrain_llama3.1_tiny_fp32_2_checkpoint_save/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_save.out',1.79551890628793954854e+09,'checkpoint.save.wait',0,1,NULL,'f6471dc97dc416c097c4a1cc6a63fc7e6fba528aa810ca3922a57fba1277dca8');
INSERT INTO "runs" VALUES(3,'pretrain_llama3.1_tiny_fp32_2_checkpoint_load-75f7a29225-1','llama3.1-25.04','tiny','fp32','cpu','weak',2,'checkpoint_load','tiny·fp32·2·checkpoint load','local','valid',NULL,16,1,1,1,1,2,'20:20',1,0.4846,0.4846,NULL,4226.16591002889,2.11308295501444490574e+03,3.48977171440363242993e+00,'llama3.1-25.04',2.7386700665509260944e+03,1.0,NULL,0.187,1.79551887962185668943e+09,1.79551887987241578104e+09,1.79551888003847479819e+09,2.50559091567993164062e-01,'llama31','manual__2026-11-24T11:13:55.981475+00:00',0,'/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/pretrain_llama3.1_tiny_fp32_2_checkpoint_load_1795518835-75f7a29225/pretrain_llama3.1_tiny_fp32_2_checkpoint_load/log-pretrain_llama3.1_tiny_fp32_2_checkpoint_load.out',1.7955189082722797394e+09,'checkpoint.load.wait',0,1,NULL,'f173ffb090ef57225147bc1f98efd7bce77a0248fbce541769a8ff517b94f707');
INSERT INTO "runs" VALUES(4,'pretrain_llama3.1_tiny_fp32_1-dcef829e96-1','llama3.1-25.04','tiny','fp32','cpu','weak',1,'performance','tiny·fp32·1','local','rejected','Expected that the log names no failure, but it says: nan_loss: the loss is NaN at global steps 12 to 19. Expected that every loss is finite, but found nan at global step 12, nan at global step 13, nan at global step 14, nan at global step 15, nan at global step 16, nan at global step 17 and 2 more.',8,1,1,1,1,1,'10:19',10,4.8460000000000003073e-01,0.4846,0.0,2.11308295501444490574e+03,2.11308295501444490574e+03,3.48977171440363198584e+00,'llama3.1-25.04',5.4773401331018521888e+03,1.0,NULL,NULL,1.79551892842464685439e+09,1.79551892880728220934e+09,1.79551892943380594254e+09,3.82635354995727539062e-01,'llama31','manual__2026-11-24T11:15:11.402333+00:00',0,'/srv/old/test_made0/home/experiments/pretrain_llama3.1_tiny_fp32_1/pretrain_llama3.1_tiny_fp32_1_1795518911-dcef829e96/pretrain_llama3.1_tiny_fp32_1/log-pretrain_llama3.1_tiny_fp32_1.out',1.79551893303124213219e+09,'performance.wait',0,1,NULL,'3190283e6b7a24ae0569f19b48e17c1efd29e705d91b6fc448bdf20198432532');
CREATE TABLE steps (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	global_step INTEGER NOT NULL, 
	step_time_s DOUBLE, 
	loss DOUBLE, 
	learning_rate DOUBLE, 
	global_batch_size INTEGER, 
	consumed_samples BIGINT, 
	tflops_per_gpu DOUBLE, 
	peak_memory_bytes BIGINT, 
	CONSTRAINT pk_steps PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_steps_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "steps" VALUES(1,0,0,0.4846,8.4,3.042e-05,16,16,NULL,890716160);
INSERT INTO "steps" VALUES(1,1,1,0.4846,8.39,3.042e-05,16,32,NULL,890716160);
INSERT INTO "steps" VALUES(1,2,2,0.4846,8.38,3.042e-05,16,48,NULL,890716160);
INSERT INTO "steps" VALUES(1,3,3,0.4846,8.37,3.042e-05,16,64,NULL,890716160);
INSERT INTO "steps" VALUES(1,4,4,0.4846,8.36,3.042e-05,16,80,NULL,890716160);
INSERT INTO "steps" VALUES(1,5,5,0.4846,8.35,3.042e-05,16,96,NULL,890716160);
INSERT INTO "steps" VALUES(1,6,6,0.4846,8.34,3.042e-05,16,112,NULL,890716160);
INSERT INTO "steps" VALUES(1,7,7,0.4846,8.33,3.042e-05,16,128,NULL,890716160);
INSERT INTO "steps" VALUES(1,8,8,0.4846,8.32,3.042e-05,16,144,NULL,890716160);
INSERT INTO "steps" VALUES(1,9,9,0.4846,8.31,3.042e-05,16,160,NULL,890716160);
INSERT INTO "steps" VALUES(1,10,10,0.4846,8.3,3.042e-05,16,176,NULL,890716160);
INSERT INTO "steps" VALUES(1,11,11,0.4846,8.29,3.042e-05,16,192,NULL,890716160);
INSERT INTO "steps" VALUES(1,12,12,0.4846,8.28,3.042e-05,16,208,NULL,890716160);
INSERT INTO "steps" VALUES(1,13,13,0.4846,8.27,3.042e-05,16,224,NULL,890716160);
INSERT INTO "steps" VALUES(1,14,14,0.4846,8.26,3.042e-05,16,240,NULL,890716160);
INSERT INTO "steps" VALUES(1,15,15,0.4846,8.25,3.042e-05,16,256,NULL,890716160);
INSERT INTO "steps" VALUES(1,16,16,0.4846,8.24,3.042e-05,16,272,NULL,890716160);
INSERT INTO "steps" VALUES(1,17,17,0.4846,8.23,3.042e-05,16,288,NULL,890716160);
INSERT INTO "steps" VALUES(1,18,18,0.4846,8.22,3.042e-05,16,304,NULL,890716160);
INSERT INTO "steps" VALUES(1,19,19,0.4846,8.21,3.042e-05,16,320,NULL,890716160);
INSERT INTO "steps" VALUES(2,0,0,0.4846,8.4,3.042e-05,16,16,NULL,890716160);
INSERT INTO "steps" VALUES(2,1,1,0.4846,8.39,3.042e-05,16,32,NULL,890716160);
INSERT INTO "steps" VALUES(2,2,2,0.4846,8.38,3.042e-05,16,48,NULL,890716160);
INSERT INTO "steps" VALUES(2,3,3,0.4846,8.37,3.042e-05,16,64,NULL,890716160);
INSERT INTO "steps" VALUES(2,4,4,0.4846,8.36,3.042e-05,16,80,NULL,890716160);
INSERT INTO "steps" VALUES(2,5,5,0.4846,8.35,3.042e-05,16,96,NULL,890716160);
INSERT INTO "steps" VALUES(2,6,6,0.4846,8.34,3.042e-05,16,112,NULL,890716160);
INSERT INTO "steps" VALUES(2,7,7,0.4846,8.33,3.042e-05,16,128,NULL,890716160);
INSERT INTO "steps" VALUES(2,8,8,0.4846,8.32,3.042e-05,16,144,NULL,890716160);
INSERT INTO "steps" VALUES(2,9,9,0.4846,8.31,3.042e-05,16,160,NULL,890716160);
INSERT INTO "steps" VALUES(2,10,10,0.4846,8.3,3.042e-05,16,176,NULL,890716160);
INSERT INTO "steps" VALUES(2,11,11,0.4846,8.29,3.042e-05,16,192,NULL,890716160);
INSERT INTO "steps" VALUES(2,12,12,0.4846,8.28,3.042e-05,16,208,NULL,890716160);
INSERT INTO "steps" VALUES(2,13,13,0.4846,8.27,3.042e-05,16,224,NULL,890716160);
INSERT INTO "steps" VALUES(2,14,14,0.4846,8.26,3.042e-05,16,240,NULL,890716160);
INSERT INTO "steps" VALUES(2,15,15,0.4846,8.25,3.042e-05,16,256,NULL,890716160);
INSERT INTO "steps" VALUES(2,16,16,0.4846,8.24,3.042e-05,16,272,NULL,890716160);
INSERT INTO "steps" VALUES(2,17,17,0.4846,8.23,3.042e-05,16,288,NULL,890716160);
INSERT INTO "steps" VALUES(2,18,18,0.4846,8.22,3.042e-05,16,304,NULL,890716160);
INSERT INTO "steps" VALUES(2,19,19,0.4846,8.21,3.042e-05,16,320,NULL,890716160);
INSERT INTO "steps" VALUES(3,0,20,0.4846,8.2,3.042e-05,16,336,NULL,890716160);
INSERT INTO "steps" VALUES(4,0,0,0.4846,8.4,3.042e-05,8,8,NULL,890716160);
INSERT INTO "steps" VALUES(4,1,1,0.4846,8.39,3.042e-05,8,16,NULL,890716160);
INSERT INTO "steps" VALUES(4,2,2,0.4846,8.38,3.042e-05,8,24,NULL,890716160);
INSERT INTO "steps" VALUES(4,3,3,0.4846,8.37,3.042e-05,8,32,NULL,890716160);
INSERT INTO "steps" VALUES(4,4,4,0.4846,8.36,3.042e-05,8,40,NULL,890716160);
INSERT INTO "steps" VALUES(4,5,5,0.4846,8.35,3.042e-05,8,48,NULL,890716160);
INSERT INTO "steps" VALUES(4,6,6,0.4846,8.34,3.042e-05,8,56,NULL,890716160);
INSERT INTO "steps" VALUES(4,7,7,0.4846,8.33,3.042e-05,8,64,NULL,890716160);
INSERT INTO "steps" VALUES(4,8,8,0.4846,8.32,3.042e-05,8,72,NULL,890716160);
INSERT INTO "steps" VALUES(4,9,9,0.4846,8.31,3.042e-05,8,80,NULL,890716160);
INSERT INTO "steps" VALUES(4,10,10,0.4846,8.3,3.042e-05,8,88,NULL,890716160);
INSERT INTO "steps" VALUES(4,11,11,0.4846,8.29,3.042e-05,8,96,NULL,890716160);
INSERT INTO "steps" VALUES(4,12,12,0.4846,NULL,3.042e-05,8,104,NULL,890716160);
INSERT INTO "steps" VALUES(4,13,13,0.4846,NULL,3.042e-05,8,112,NULL,890716160);
INSERT INTO "steps" VALUES(4,14,14,0.4846,NULL,3.042e-05,8,120,NULL,890716160);
INSERT INTO "steps" VALUES(4,15,15,0.4846,NULL,3.042e-05,8,128,NULL,890716160);
INSERT INTO "steps" VALUES(4,16,16,0.4846,NULL,3.042e-05,8,136,NULL,890716160);
INSERT INTO "steps" VALUES(4,17,17,0.4846,NULL,3.042e-05,8,144,NULL,890716160);
INSERT INTO "steps" VALUES(4,18,18,0.4846,NULL,3.042e-05,8,152,NULL,890716160);
INSERT INTO "steps" VALUES(4,19,19,0.4846,NULL,3.042e-05,8,160,NULL,890716160);
CREATE TABLE steptime_store_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT steptime_store_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "steptime_store_version" VALUES('0002');
CREATE TABLE validations (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	passed BOOLEAN NOT NULL, 
	severity TEXT NOT NULL, 
	message TEXT NOT NULL, 
	CONSTRAINT pk_validations PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_validations_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "validations" VALUES(1,0,'job_succeeded',1,'error','The job succeeded.');
INSERT INTO "validations" VALUES(1,1,'log_without_failure',1,'error','The log names no failure.');
INSERT INTO "validations" VALUES(1,2,'window_complete',1,'error','Every step of the window 10:19 is in the log.');
INSERT INTO "validations" VALUES(1,3,'steps_once',1,'error','No step is listed twice.');
INSERT INTO "validations" VALUES(1,4,'steps_as_planned',1,'error','The steps run from 0 to 19.');
INSERT INTO "validations" VALUES(1,5,'step_times_positive_and_finite',1,'error','Every step time is positive and finite.');
INSERT INTO "validations" VALUES(1,6,'losses_finite',1,'error','Every loss is finite.');
INSERT INTO "validations" VALUES(1,7,'global_batch_size_as_planned',1,'error','The global batch size is 16 in every step that states it.');
INSERT INTO "validations" VALUES(1,8,'consumed_samples_consistent',1,'error','Consumed samples are (global step + 1) × 16 in every step that states them.');
INSERT INTO "validations" VALUES(1,9,'step_times_steady',1,'warning','The standard deviation of the window''s step times is at most 30 % of their mean, 0.1454 s.');
INSERT INTO "validations" VALUES(1,10,'no_step_trained_twice',1,'error','No step of the window was trained twice.');
INSERT INTO "validations" VALUES(1,11,'batch_size_stated',1,'error','The log states a global batch size or consumed samples.');
INSERT INTO "validations" VALUES(1,12,'parallelism_as_planned',1,'error','Parallelism and batch are as planned.');
INSERT INTO "validations" VALUES(1,13,'training_completed',1,'error','The trainer recorded its end as completed.');
INSERT INTO "validations" VALUES(1,14,'measured_over_window',1,'error','The step time is measured over the window 10:19 of 10 steps.');
INSERT INTO "validations" VALUES(1,15,'mfu_possible',1,'warning','The MFU is at most 100 %.');
INSERT INTO "validations" VALUES(2,0,'job_succeeded',1,'error','The job succeeded.');
INSERT INTO "validations" VALUES(2,1,'log_without_failure',1,'error','The log names no failure.');
INSERT INTO "validations" VALUES(2,2,'window_complete',1,'error','Every step of the window 10:19 is in the log.');
INSERT INTO "validations" VALUES(2,3,'steps_once',1,'error','No step is listed twice.');
INSERT INTO "validations" VALUES(2,4,'steps_as_planned',1,'error','The steps run from 0 to 19.');
INSERT INTO "validations" VALUES(2,5,'step_times_positive_and_finite',1,'error','Every step time is positive and finite.');
INSERT INTO "validations" VALUES(2,6,'losses_finite',1,'error','Every loss is finite.');
INSERT INTO "validations" VALUES(2,7,'global_batch_size_as_planned',1,'error','The global batch size is 16 in every step that states it.');
INSERT INTO "validations" VALUES(2,8,'consumed_samples_consistent',1,'error','Consumed samples are (global step + 1) × 16 in every step that states them.');
INSERT INTO "validations" VALUES(2,9,'step_times_steady',1,'warning','The standard deviation of the window''s step times is at most 30 % of their mean, 0.1454 s.');
INSERT INTO "validations" VALUES(2,10,'no_step_trained_twice',1,'error','No step of the window was trained twice.');
INSERT INTO "validations" VALUES(2,11,'batch_size_stated',1,'error','The log states a global batch size or consumed samples.');
INSERT INTO "validations" VALUES(2,12,'parallelism_as_planned',1,'error','Parallelism and batch are as planned.');
INSERT INTO "validations" VALUES(2,13,'training_completed',1,'error','The trainer recorded its end as completed.');
INSERT INTO "validations" VALUES(2,14,'measured_over_window',1,'error','The step time is measured over the window 10:19 of 10 steps.');
INSERT INTO "validations" VALUES(2,15,'mfu_possible',1,'warning','The MFU is at most 100 %.');
INSERT INTO "validations" VALUES(2,16,'checkpoint_saved',1,'error','A checkpoint was saved after the last step, global step 19 (iteration 19, counted from 0).');
INSERT INTO "validations" VALUES(3,0,'job_succeeded',1,'error','The job succeeded.');
INSERT INTO "validations" VALUES(3,1,'log_without_failure',1,'error','The log names no failure.');
INSERT INTO "validations" VALUES(3,2,'window_complete',1,'error','Every step of the window 20:20 is in the log.');
INSERT INTO "validations" VALUES(3,3,'steps_once',1,'error','No step is listed twice.');
INSERT INTO "validations" VALUES(3,4,'steps_as_planned',1,'error','The steps run from 20 to 20.');
INSERT INTO "validations" VALUES(3,5,'step_times_positive_and_finite',1,'error','Every step time is positive and finite.');
INSERT INTO "validations" VALUES(3,6,'losses_finite',1,'error','Every loss is finite.');
INSERT INTO "validations" VALUES(3,7,'global_batch_size_as_planned',1,'error','The global batch size is 16 in every step that states it.');
INSERT INTO "validations" VALUES(3,8,'consumed_samples_consistent',1,'error','Consumed samples are (global step + 1) × 16 in every step that states them.');
INSERT INTO "validations" VALUES(3,9,'no_step_trained_twice',1,'error','No step of the window was trained twice.');
INSERT INTO "validations" VALUES(3,10,'batch_size_stated',1,'error','The log states a global batch size or consumed samples.');
INSERT INTO "validations" VALUES(3,11,'parallelism_as_planned',1,'error','Parallelism and batch are as planned.');
INSERT INTO "validations" VALUES(3,12,'training_completed',1,'error','The trainer recorded its end as completed.');
INSERT INTO "validations" VALUES(3,13,'measured_over_window',1,'error','The step time is measured over the window 20:20 of 1 step.');
INSERT INTO "validations" VALUES(3,14,'mfu_possible',1,'warning','The MFU is at most 100 %.');
INSERT INTO "validations" VALUES(3,15,'checkpoint_loaded',1,'error','A checkpoint was loaded.');
INSERT INTO "validations" VALUES(3,16,'resumed_at_saved_step',1,'error','Training resumed at global step 20 with 320 consumed samples.');
INSERT INTO "validations" VALUES(4,0,'job_succeeded',1,'error','The job succeeded.');
INSERT INTO "validations" VALUES(4,1,'log_without_failure',0,'error','Expected that the log names no failure, but it says: nan_loss: the loss is NaN at global steps 12 to 19.');
INSERT INTO "validations" VALUES(4,2,'window_complete',1,'error','Every step of the window 10:19 is in the log.');
INSERT INTO "validations" VALUES(4,3,'steps_once',1,'error','No step is listed twice.');
INSERT INTO "validations" VALUES(4,4,'steps_as_planned',1,'error','The steps run from 0 to 19.');
INSERT INTO "validations" VALUES(4,5,'step_times_positive_and_finite',1,'error','Every step time is positive and finite.');
INSERT INTO "validations" VALUES(4,6,'losses_finite',0,'error','Expected that every loss is finite, but found nan at global step 12, nan at global step 13, nan at global step 14, nan at global step 15, nan at global step 16, nan at global step 17 and 2 more.');
INSERT INTO "validations" VALUES(4,7,'global_batch_size_as_planned',1,'error','The global batch size is 8 in every step that states it.');
INSERT INTO "validations" VALUES(4,8,'consumed_samples_consistent',1,'error','Consumed samples are (global step + 1) × 8 in every step that states them.');
INSERT INTO "validations" VALUES(4,9,'step_times_steady',1,'warning','The standard deviation of the window''s step times is at most 30 % of their mean, 0.1454 s.');
INSERT INTO "validations" VALUES(4,10,'no_step_trained_twice',1,'error','No step of the window was trained twice.');
INSERT INTO "validations" VALUES(4,11,'batch_size_stated',1,'error','The log states a global batch size or consumed samples.');
INSERT INTO "validations" VALUES(4,12,'parallelism_as_planned',1,'error','Parallelism and batch are as planned.');
INSERT INTO "validations" VALUES(4,13,'training_completed',1,'error','The trainer recorded its end as completed.');
INSERT INTO "validations" VALUES(4,14,'measured_over_window',1,'error','The step time is measured over the window 10:19 of 10 steps.');
INSERT INTO "validations" VALUES(4,15,'mfu_possible',1,'warning','The MFU is at most 100 %.');
CREATE INDEX ix_runs_dag_id_dag_run_id ON runs (dag_id, dag_run_id);
CREATE INDEX ix_runs_submitted_at ON runs (submitted_at);
CREATE INDEX ix_runs_workload_size_dtype_gpu_type_mode_gpus ON runs (workload, size, dtype, gpu_type, mode, gpus);
COMMIT;
