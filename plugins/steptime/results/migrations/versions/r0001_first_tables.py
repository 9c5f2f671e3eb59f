"""The first tables: runs with their steps, checkpoints, checks, and what is needed to repeat them."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job_name", sa.Text, nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("size", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("gpu_type", sa.Text, nullable=False),
        sa.Column("scaling", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("global_batch_size", sa.Integer, nullable=False),
        sa.Column("micro_batch_size", sa.Integer, nullable=False),
        sa.Column("tensor_parallel", sa.Integer, nullable=False),
        sa.Column("pipeline_parallel", sa.Integer, nullable=False),
        sa.Column("context_parallel", sa.Integer, nullable=False),
        sa.Column("data_parallel", sa.Integer, nullable=False),
        sa.Column("window", sa.Text, nullable=False),
        sa.Column("steps_in_window", sa.Integer),
        sa.Column("step_time_mean_s", sa.Double),
        sa.Column("step_time_median_s", sa.Double),
        sa.Column("step_time_std_s", sa.Double),
        sa.Column("tokens_per_s", sa.Double),
        sa.Column("tokens_per_s_per_gpu", sa.Double),
        sa.Column("mfu_percent", sa.Double),
        sa.Column("flops_formula", sa.Text, nullable=False),
        sa.Column("days_per_1t_tokens", sa.Double),
        sa.Column("peak_tflops_per_gpu", sa.Double),
        sa.Column("checkpoint_save_s", sa.Double),
        sa.Column("checkpoint_load_s", sa.Double),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("queue_wait_s", sa.Double),
        sa.Column("dag_id", sa.Text),
        sa.Column("dag_run_id", sa.Text),
        sa.Column("map_index", sa.Integer),
        sa.Column("log_path", sa.Text, nullable=False),
        sa.Column("published_at", sa.Double, nullable=False),
        sa.Column("task_id", sa.Text),
        sa.Column("proxy", sa.Boolean, nullable=False),
        sa.Column("repeat", sa.Integer, nullable=False),
        sa.Column("warnings", sa.Text),
        sa.Column("content_sha256", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("job_name", name=op.f("uq_runs_job_name")),
    )
    op.create_index(op.f("ix_runs_dag_id_dag_run_id"), "runs", ["dag_id", "dag_run_id"])
    op.create_index(op.f("ix_runs_submitted_at"), "runs", ["submitted_at"])
    op.create_index(
        op.f("ix_runs_workload_size_dtype_gpu_type_mode_gpus"),
        "runs",
        ["workload", "size", "dtype", "gpu_type", "mode", "gpus"],
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("iteration", sa.BigInteger),
        sa.Column("started_at", sa.Double),
        sa.Column("duration_s", sa.Double),
        sa.Column("asynchronous", sa.Boolean, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "provenance",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("steptime_version", sa.Text, nullable=False),
        sa.Column("git_commit", sa.Text),
        sa.Column("git_clean", sa.Boolean),
        sa.Column("script", sa.Text, nullable=False),
        sa.Column("recipe", sa.JSON, nullable=False),
        sa.Column("run", sa.JSON, nullable=False),
        sa.Column("job", sa.JSON, nullable=False),
        sa.Column("status", sa.JSON, nullable=False),
        sa.Column("staged", sa.JSON, nullable=False),
        sa.Column("versions", sa.JSON(none_as_null=True)),
        sa.Column("measurement", sa.JSON(none_as_null=True)),
        sa.Column("log", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_provenance_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_provenance")),
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("global_step", sa.Integer, nullable=False),
        sa.Column("step_time_s", sa.Double),
        sa.Column("loss", sa.Double),
        sa.Column("learning_rate", sa.Double),
        sa.Column("global_batch_size", sa.Integer),
        sa.Column("consumed_samples", sa.BigInteger),
        sa.Column("tflops_per_gpu", sa.Double),
        sa.Column("peak_memory_bytes", sa.BigInteger),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_steps_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_steps")),
    )
    op.create_table(
        "validations",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("passed", sa.Boolean, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_validations_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_validations")),
    )
