"""DeepSeek-V4 Flash: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("deepseek_v4", workload="deepseek-v4")
