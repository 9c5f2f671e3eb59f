BEGIN TRANSACTION;
CREATE TABLE charges (
	id INTEGER NOT NULL, 
	job_name TEXT, 
	dag_run TEXT, 
	held_by TEXT, 
	label TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	account TEXT, 
	gpus INTEGER NOT NULL, 
	time_limit_s INTEGER, 
	counts_until DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	CONSTRAINT pk_charges PRIMARY KEY (id), 
	CONSTRAINT uq_charges_job_name UNIQUE (job_name)
);
INSERT INTO "charges" VALUES(1,'tiny-2','llama31/manual__2026-11-21',NULL,'tiny·fp32·2','local',NULL,2,600,1790000040.0,1790000001.5,1790000040.0);
INSERT INTO "charges" VALUES(2,'tiny-2-save','llama31/manual__2026-11-21',NULL,'tiny·fp32·2·checkpoint save','local',NULL,2,600,1790000040.0,1790000001.5,1790000040.0);
INSERT INTO "charges" VALUES(3,'bad','llama31/manual__2026-11-21',NULL,'tiny·fp32·2','local',NULL,2,600,0.0,NULL,0.0);
CREATE TABLE checkpoints (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	iteration BIGINT, 
	started_at DOUBLE, 
	duration_s DOUBLE, 
	asynchronous BOOLEAN NOT NULL, blocked_s DOUBLE, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES(2,0,'save',3,1790000030.0,0.946,1,0.146);
CREATE TABLE readings (
	run_id INTEGER NOT NULL, 
	measurement JSON, 
	log JSON NOT NULL, 
	CONSTRAINT pk_readings PRIMARY KEY (run_id), 
	CONSTRAINT fk_readings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "readings" VALUES(1,'{"window": {"first": 2, "last": 3}, "steps_in_window": 2, "step_time_mean_s": 0.4, "step_time_median_s": 0.4, "step_time_std_s": 0.003959797974644662, "tokens_per_s": 5120.0, "tokens_per_s_per_gpu": 2560.0, "days_per_1t_tokens": 2260.5613425925926, "model_tflops_per_gpu": 0.04227858432, "peak_tflops_per_gpu": 0.06, "peak_source": "GEMM fp32 2048\u00d72048\u00d72048, 1 thread, measured at start", "mfu_percent": 70.4643072, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "wall_time_median_s": null, "checkpoint_save_s": null, "checkpoint_blocked_s": null, "checkpoint_load_s": null}','{"path": "/experiments/tiny-2/log-pretrain_llama3.1_tiny_fp32_2.out", "dialect": "nemo2", "bytes_read": 8192, "problems": [], "node_check": null, "started": {"schema": 1, "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "peak_tflops_per_rank": 0.06, "peak_source": "GEMM fp32 2048\u00d72048\u00d72048, 1 thread, measured at start", "versions": {"nemo": "2.7.3", "megatron_core": "0.15.3", "torch": "2.13.0", "python": "3.11.7"}}, "resumed": null, "ended": {"state": "completed", "global_step": 3, "steps_trained": 4}}');
INSERT INTO "readings" VALUES(2,'{"window": {"first": 2, "last": 3}, "steps_in_window": 2, "step_time_mean_s": 0.40054999999999996, "step_time_median_s": 0.40054999999999996, "step_time_std_s": 0.004737615433949857, "tokens_per_s": 5112.969666708276, "tokens_per_s_per_gpu": 2556.484833354138, "days_per_1t_tokens": 2263.6696144386574, "model_tflops_per_gpu": 0.042220531089751594, "peak_tflops_per_gpu": 0.06, "peak_source": "GEMM fp32 2048\u00d72048\u00d72048, 1 thread, measured at start", "mfu_percent": 70.36755181625266, "flops_formula": "llama3.1-25.04", "tflops_per_gpu_logged": null, "wall_time_median_s": null, "checkpoint_save_s": 0.946, "checkpoint_blocked_s": 0.146, "checkpoint_load_s": null}','{"path": "/experiments/tiny-2-save/log-pretrain_llama3.1_tiny_fp32_2.out", "dialect": "nemo2", "bytes_read": 8192, "problems": [], "node_check": null, "started": {"schema": 1, "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "peak_tflops_per_rank": 0.06, "peak_source": "GEMM fp32 2048\u00d72048\u00d72048, 1 thread, measured at start", "versions": {"nemo": "2.7.3", "megatron_core": "0.15.3", "torch": "2.13.0", "python": "3.11.7"}}, "resumed": null, "ended": {"state": "completed", "global_step": 3, "steps_trained": 4}}');
INSERT INTO "readings" VALUES(3,NULL,'{"path": "/experiments/bad/log-pretrain_llama3.1_tiny_fp32_2.out", "dialect": "nemo2", "bytes_read": 8192, "problems": [], "node_check": null, "started": {"schema": 1, "world_size": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "data_parallel": 2, "micro_batch_size": 1, "global_batch_size": 16, "seq_length": 128, "num_layers": 2, "peak_tflops_per_rank": 0.06, "peak_source": "GEMM fp32 2048\u00d72048\u00d72048, 1 thread, measured at start", "versions": {"nemo": "2.7.3", "megatron_core": "0.15.3", "torch": "2.13.0", "python": "3.11.7"}}, "resumed": null, "ended": {"state": "completed", "global_step": 3, "steps_trained": 4}}');
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
    "name": "tiny-2",
    "job_id": "tiny-2",
    "directory": "/experiments/tiny-2",
    "log_path": "/experiments/tiny-2/log-pretrain_llama3.1_tiny_fp32_2.out",
    "submitted_at": 1790000000.0,
    "installation": null
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1790000001.5,
    "ended_at": 1790000040.0,
    "nodes": [
      "localhost"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "2.7.3",
    "megatron_core": "0.15.3",
    "torch": "2.13.0",
    "python": "3.11.7"
  },
  "launch": {},
  "node_check": null,
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
      "gpus_per_node": 2,
      "image": null,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "performance",
    "first_step": 0,
    "max_steps": 4,
    "window": {
      "first": 2,
      "last": 3
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {},
    "performance": {
      "trainer": {
        "fp8_recipe": null,
        "first_last_layers_bf16": false,
        "cuda_graphs": false,
        "cross_entropy_fusion_impl": "native",
        "use_precision_aware_optimizer": false,
        "overlap_grad_reduce": false,
        "overlap_param_gather": false,
        "average_in_collective": false,
        "check_for_nan_in_grad": false,
        "comm_overlap_callback": false,
        "tp_comm_overlap": false,
        "tp_comm_overlap_cfg": null,
        "overlap_param_gather_with_optimizer_step": false,
        "defer_embedding_wgrad_compute": false,
        "wgrad_deferral_limit": null,
        "gc_interval": null
      },
      "environment": {},
      "ranks_per_numa_node": null,
      "vboost": false
    },
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": null,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "675de01b859eae371bc01bf59b001889438a7a12",
    "git_clean": true,
    "staged": {
      "python": "/venv/bin/python",
      "venv_lock_sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "trainer_path": "/staged/trainer",
      "trainer_sha256": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "size": "tiny",
      "gpus": "2",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONPATH": "/staged/trainer"
    },
    "script": "#!/bin/bash\ntorchrun -m trainer --run run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-21",
    "task_id": "wait",
    "map_index": 0
  }
}
','f1d8a4a8f9b0912f6d33d6beda591c3ae79fb33b58b1173a912538a6c21cd6c1');
INSERT INTO "records" VALUES(2,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "tiny-2-save",
    "job_id": "tiny-2-save",
    "directory": "/experiments/tiny-2-save",
    "log_path": "/experiments/tiny-2-save/log-pretrain_llama3.1_tiny_fp32_2.out",
    "submitted_at": 1790000000.0,
    "installation": null
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1790000001.5,
    "ended_at": 1790000040.0,
    "nodes": [
      "localhost"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "2.7.3",
    "megatron_core": "0.15.3",
    "torch": "2.13.0",
    "python": "3.11.7"
  },
  "launch": {},
  "node_check": null,
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
      "gpus_per_node": 2,
      "image": null,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "checkpoint_save",
    "first_step": 0,
    "max_steps": 4,
    "window": {
      "first": 2,
      "last": 3
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {},
    "performance": {
      "trainer": {
        "fp8_recipe": null,
        "first_last_layers_bf16": false,
        "cuda_graphs": false,
        "cross_entropy_fusion_impl": "native",
        "use_precision_aware_optimizer": false,
        "overlap_grad_reduce": false,
        "overlap_param_gather": false,
        "average_in_collective": false,
        "check_for_nan_in_grad": false,
        "comm_overlap_callback": false,
        "tp_comm_overlap": false,
        "tp_comm_overlap_cfg": null,
        "overlap_param_gather_with_optimizer_step": false,
        "defer_embedding_wgrad_compute": false,
        "wgrad_deferral_limit": null,
        "gc_interval": null
      },
      "environment": {},
      "ranks_per_numa_node": null,
      "vboost": false
    },
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": null,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "675de01b859eae371bc01bf59b001889438a7a12",
    "git_clean": true,
    "staged": {
      "python": "/venv/bin/python",
      "venv_lock_sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "trainer_path": "/staged/trainer",
      "trainer_sha256": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "size": "tiny",
      "gpus": "2",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONPATH": "/staged/trainer"
    },
    "script": "#!/bin/bash\ntorchrun -m trainer --run run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-21",
    "task_id": "wait",
    "map_index": 0
  }
}
','e2cef3930905501954ba93340bbca6f46b00942911ddce09591a207fc694a78f');
INSERT INTO "records" VALUES(3,'{
  "schema_version": 1,
  "job": {
    "cluster": "local",
    "name": "bad",
    "job_id": "bad",
    "directory": "/experiments/bad",
    "log_path": "/experiments/bad/log-pretrain_llama3.1_tiny_fp32_2.out",
    "submitted_at": 1790000000.0,
    "installation": null
  },
  "status": {
    "state": "succeeded",
    "reason": "",
    "exit_code": 0,
    "started_at": 1790000001.5,
    "ended_at": 1790000040.0,
    "nodes": [
      "localhost"
    ],
    "cluster_fault": false,
    "failed_nodes": []
  },
  "earlier_attempts": [],
  "nodes": [
    "localhost"
  ],
  "versions": {
    "nemo": "2.7.3",
    "megatron_core": "0.15.3",
    "torch": "2.13.0",
    "python": "3.11.7"
  },
  "launch": {},
  "node_check": null,
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
      "gpus_per_node": 2,
      "image": null,
      "step_log": "lines",
      "flops_formula": "llama3.1-25.04"
    },
    "mode": "performance",
    "first_step": 0,
    "max_steps": 4,
    "window": {
      "first": 2,
      "last": 3
    },
    "time_limit_s": 600,
    "cluster": "local",
    "repeat": 1,
    "seed": 1234,
    "checkpoint_path": null,
    "async_save": false,
    "environment": {},
    "performance": {
      "trainer": {
        "fp8_recipe": null,
        "first_last_layers_bf16": false,
        "cuda_graphs": false,
        "cross_entropy_fusion_impl": "native",
        "use_precision_aware_optimizer": false,
        "overlap_grad_reduce": false,
        "overlap_param_gather": false,
        "average_in_collective": false,
        "check_for_nan_in_grad": false,
        "comm_overlap_callback": false,
        "tp_comm_overlap": false,
        "tp_comm_overlap_cfg": null,
        "overlap_param_gather_with_optimizer_step": false,
        "defer_embedding_wgrad_compute": false,
        "wgrad_deferral_limit": null,
        "gc_interval": null
      },
      "environment": {},
      "ranks_per_numa_node": null,
      "vboost": false
    },
    "profile": null,
    "cuda_graphs": null,
    "tp_comm_overlap": null,
    "model_flops": null,
    "slurm": null
  },
  "provenance": {
    "steptime_version": "0.1.0",
    "git_commit": "675de01b859eae371bc01bf59b001889438a7a12",
    "git_clean": true,
    "staged": {
      "python": "/venv/bin/python",
      "venv_lock_sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "trainer_path": "/staged/trainer",
      "trainer_sha256": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
      "image": null,
      "image_path": null,
      "image_digest": null,
      "image_sha256": null,
      "image_environment": {}
    },
    "options": {
      "size": "tiny",
      "gpus": "2",
      "environment": {}
    },
    "environment": {
      "OMP_NUM_THREADS": "1",
      "PYTHONPATH": "/staged/trainer"
    },
    "script": "#!/bin/bash\ntorchrun -m trainer --run run.json\n",
    "dag_id": "llama31",
    "dag_run_id": "manual__2026-11-21",
    "task_id": "wait",
    "map_index": 0
  }
}
','ae2f2f1026129488b1913d05452f60cb8e8132fdbbbad0fb5fe69947285d9f8a');
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
	content_sha256 TEXT NOT NULL, wall_time_median_s DOUBLE, checkpoint_blocked_s DOUBLE, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT uq_runs_job_name UNIQUE (job_name)
);
INSERT INTO "runs" VALUES(1,'tiny-2','llama3.1-25.04','tiny','fp32','cpu','weak',2,'performance','tiny·fp32·2','local','valid',NULL,16,1,1,1,1,2,'2:3',2,0.4,0.4,3.95979797464466199558e-03,5120.0,2560.0,70.4643072,'llama3.1-25.04',2.26056134259259260935e+03,0.06,NULL,NULL,1790000000.0,1790000001.5,1790000040.0,1.5,'llama31','manual__2026-11-21',0,'/experiments/tiny-2/log-pretrain_llama3.1_tiny_fp32_2.out',1.79539183521120643619e+09,'wait',0,1,NULL,'e752076b0fb0b58f8401dd052a5edc3290052610217aca05795eef73a9eb5f16',NULL,NULL);
INSERT INTO "runs" VALUES(2,'tiny-2-save','llama3.1-25.04','tiny','fp32','cpu','weak',2,'checkpoint_save','tiny·fp32·2·checkpoint save','local','valid',NULL,16,1,1,1,1,2,'2:3',2,4.0054999999999996163e-01,4.0054999999999996163e-01,4.7376154339498566595e-03,5.1129696667082762361e+03,2.55648483335413811805e+03,7.03675518162526572032e+01,'llama3.1-25.04',2.26366961443865739064e+03,0.06,0.946,NULL,1790000000.0,1790000001.5,1790000040.0,1.5,'llama31','manual__2026-11-21',0,'/experiments/tiny-2-save/log-pretrain_llama3.1_tiny_fp32_2.out',1.79539183575778651244e+09,'wait',0,1,NULL,'e322915e76a82a3d92e6acf475de37d8a7df64d616876681500dfc97b5f8cf32',NULL,0.146);
INSERT INTO "runs" VALUES(3,'bad','llama3.1-25.04','tiny','fp32','cpu','weak',2,'performance','tiny·fp32·2','local','rejected','Expected that the job succeeded, but it failed.',16,1,1,1,1,2,'2:3',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'llama3.1-25.04',NULL,NULL,NULL,NULL,1790000000.0,NULL,NULL,NULL,'llama31','manual__2026-11-21',0,'/experiments/bad/log-pretrain_llama3.1_tiny_fp32_2.out',1.79539183576938748358e+09,'wait',0,1,NULL,'1439374f42e9405424d00d80b62d1299400fe106293e1c5c8abd7987768fa2db',NULL,NULL);
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
	peak_memory_bytes BIGINT, wall_time_s DOUBLE, 
	CONSTRAINT pk_steps PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_steps_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "steps" VALUES(1,0,0,0.4023,8.4,NULL,16,NULL,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(1,1,1,0.402,8.39,NULL,16,32,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(1,2,2,0.4028,8.38,NULL,16,48,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(1,3,3,0.3972,8.37000000000000099475e+00,NULL,16,64,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(2,0,0,0.401,8.4,NULL,16,NULL,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(2,1,1,0.3964,8.39,NULL,16,32,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(2,2,2,0.4039,8.38,NULL,16,48,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(2,3,3,0.3972,8.37000000000000099475e+00,NULL,16,64,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(3,0,0,0.3987,8.4,NULL,16,NULL,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(3,1,1,0.4023,8.39,NULL,16,32,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(3,2,2,0.4005,8.38,NULL,16,48,NULL,890716160,NULL);
INSERT INTO "steps" VALUES(3,3,3,0.3993,8.37000000000000099475e+00,NULL,16,64,NULL,890716160,NULL);
CREATE TABLE steptime_store_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT steptime_store_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "steptime_store_version" VALUES('0005');
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
INSERT INTO "validations" VALUES(1,0,'job_succeeded',1,'error','It did.');
INSERT INTO "validations" VALUES(2,0,'job_succeeded',1,'error','It did.');
INSERT INTO "validations" VALUES(3,0,'job_succeeded',0,'error','Expected that the job succeeded, but it failed.');
CREATE INDEX ix_runs_dag_id_dag_run_id ON runs (dag_id, dag_run_id);
CREATE INDEX ix_runs_submitted_at ON runs (submitted_at);
CREATE INDEX ix_runs_workload_size_dtype_gpu_type_mode_gpus ON runs (workload, size, dtype, gpu_type, mode, gpus);
CREATE INDEX ix_charges_cluster_ended_at ON charges (cluster, ended_at);
COMMIT;
