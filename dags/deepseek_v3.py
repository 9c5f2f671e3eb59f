"""DeepSeek-V3 671b, a mixture of experts: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("deepseek_v3", workload="deepseek-v3")
