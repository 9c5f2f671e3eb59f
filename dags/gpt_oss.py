"""GPT-OSS 120b: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("gpt_oss", workload="gpt-oss")
