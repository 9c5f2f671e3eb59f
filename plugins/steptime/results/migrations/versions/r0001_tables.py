"""All tables of the metrics store."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""

    op.create_table(
        "incidents",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("notified", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.Float(53), nullable=False),
        sa.Column("confirmed_at", sa.Float(53), nullable=True),
        sa.Column("closed_at", sa.Float(53), nullable=True),
        sa.Column("since", sa.Float(53), nullable=False),
        sa.Column("earliest", sa.Float(53), nullable=False),
        sa.Column("latest", sa.Float(53), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("cells", sa.JSON(), nullable=False),
        sa.Column("change", sa.Float(53), nullable=False),
        sa.Column("judged_cells", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("noted_by", sa.Text(), nullable=True),
        sa.Column("noted_at", sa.Float(53), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
    )
    op.create_index(op.f("ix_incidents_state"), "incidents", ["state"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("installation_id", sa.Text(), nullable=False),
        sa.Column("installation_address", sa.Text(), nullable=True),
        sa.Column("dag_id", sa.Text(), nullable=False),
        sa.Column("dag_run_id", sa.Text(), nullable=False),
        sa.Column("run_after", sa.Float(53), nullable=True),
        sa.Column("task_group", sa.Text(), nullable=True),
        sa.Column("map_index", sa.Integer(), nullable=True),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("resubmission", sa.Integer(), nullable=True),
        sa.Column("max_tries", sa.Integer(), nullable=True),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("time_limit_s", sa.Integer(), nullable=False),
        sa.Column("excluded_nodes", sa.JSON(), nullable=True),
        sa.Column("run", sa.JSON(), nullable=True),
        sa.Column("request", sa.JSON(), nullable=True),
        sa.Column("made_by", sa.JSON(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("abandoned", sa.Boolean(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("directory", sa.Text(), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("at_once", sa.Integer(), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True),
        sa.Column("asked_at", sa.Float(53), nullable=True),
        sa.Column("submitted_at", sa.Float(53), nullable=True),
        sa.Column("started_at", sa.Float(53), nullable=True),
        sa.Column("ended_at", sa.Float(53), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_cluster_ended_at"), "jobs", ["cluster", "ended_at"], unique=False)
    op.create_index(op.f("ix_jobs_dag_id_dag_run_id"), "jobs", ["dag_id", "dag_run_id"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("warnings", sa.Text(), nullable=True),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("size", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=False),
        sa.Column("scaling", sa.Text(), nullable=False),
        sa.Column("proxy", sa.Boolean(), nullable=False),
        sa.Column("tuning", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("for_judging", sa.Boolean(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("tensor_parallel", sa.Integer(), nullable=False),
        sa.Column("pipeline_parallel", sa.Integer(), nullable=False),
        sa.Column("context_parallel", sa.Integer(), nullable=False),
        sa.Column("data_parallel", sa.Integer(), nullable=False),
        sa.Column("expert_parallel", sa.Integer(), nullable=False),
        sa.Column("global_batch_size", sa.Integer(), nullable=False),
        sa.Column("micro_batch_size", sa.Integer(), nullable=False),
        sa.Column("window", sa.Text(), nullable=False),
        sa.Column("steps_in_window", sa.Integer(), nullable=True),
        sa.Column("step_time_mean_s", sa.Float(53), nullable=True),
        sa.Column("step_time_std_s", sa.Float(53), nullable=True),
        sa.Column("step_time_median_s", sa.Float(53), nullable=True),
        sa.Column("steady_steps", sa.Text(), nullable=True),
        sa.Column("steady_step_time_s", sa.Float(53), nullable=True),
        sa.Column("steady_step_time_iqr_s", sa.Float(53), nullable=True),
        sa.Column("wall_time_median_s", sa.Float(53), nullable=True),
        sa.Column("published_step_time_s", sa.Float(53), nullable=True),
        sa.Column("step_time_over_published", sa.Float(53), nullable=True),
        sa.Column("against_publication", sa.Text(), nullable=True),
        sa.Column("tokens_per_s", sa.Float(53), nullable=True),
        sa.Column("tokens_per_s_per_gpu", sa.Float(53), nullable=True),
        sa.Column("scaling_efficiency_percent", sa.Float(53), nullable=True),
        sa.Column("scaling_efficiency_low_percent", sa.Float(53), nullable=True),
        sa.Column("scaling_efficiency_high_percent", sa.Float(53), nullable=True),
        sa.Column("scaling_base_gpus", sa.Integer(), nullable=True),
        sa.Column("scaling_base_jobs", sa.Text(), nullable=True),
        sa.Column("mfu_percent", sa.Float(53), nullable=True),
        sa.Column("flops_formula", sa.Text(), nullable=False),
        sa.Column("model_tflops_per_gpu", sa.Float(53), nullable=True),
        sa.Column("tflops_per_gpu_logged", sa.Float(53), nullable=True),
        sa.Column("tflops_per_gpu_logged_std", sa.Float(53), nullable=True),
        sa.Column("peak_memory_gib", sa.Float(53), nullable=True),
        sa.Column("peak_tflops_per_gpu", sa.Float(53), nullable=True),
        sa.Column("days_per_1t_tokens", sa.Float(53), nullable=True),
        sa.Column("checkpoint_save_s", sa.Float(53), nullable=True),
        sa.Column("checkpoint_blocked_s", sa.Float(53), nullable=True),
        sa.Column("checkpoint_load_s", sa.Float(53), nullable=True),
        sa.Column("gpu_hours", sa.Float(53), nullable=True),
        sa.Column("submitted_at", sa.Float(53), nullable=False),
        sa.Column("started_at", sa.Float(53), nullable=True),
        sa.Column("ended_at", sa.Float(53), nullable=True),
        sa.Column("queue_wait_s", sa.Float(53), nullable=True),
        sa.Column("nodes", sa.Text(), nullable=True),
        sa.Column("dag_id", sa.Text(), nullable=True),
        sa.Column("dag_run_id", sa.Text(), nullable=True),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("map_index", sa.Integer(), nullable=True),
        sa.Column("sweep", sa.Text(), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.Column("published_at", sa.Float(53), nullable=True),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("job_name", name=op.f("uq_runs_job_name")),
    )
    op.create_index(op.f("ix_runs_dag_id_dag_run_id"), "runs", ["dag_id", "dag_run_id"], unique=False)
    op.create_index(op.f("ix_runs_submitted_at"), "runs", ["submitted_at"], unique=False)
    op.create_table(
        "accepted_levels",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("accepted_by", sa.Text(), nullable=False),
        sa.Column("accepted_at", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_accepted_levels_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_accepted_levels")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.Float(53), nullable=True),
        sa.Column("duration_s", sa.Float(53), nullable=True),
        sa.Column("asynchronous", sa.Boolean(), nullable=False),
        sa.Column("blocked_s", sa.Float(53), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "judgements",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("figure", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=True),
        sa.Column("judged_on", sa.Text(), nullable=False),
        sa.Column("judged_s", sa.Float(53), nullable=False),
        sa.Column("ratio", sa.Float(53), nullable=True),
        sa.Column("limit_ratio", sa.Float(53), nullable=True),
        sa.Column("baseline_mean_s", sa.Float(53), nullable=True),
        sa.Column("baseline_median_s", sa.Float(53), nullable=True),
        sa.Column("baseline_deviation", sa.Float(53), nullable=True),
        sa.Column("baseline_runs", sa.Integer(), nullable=True),
        sa.Column("minimum_detectable_change", sa.Float(53), nullable=True),
        sa.Column("p_value", sa.Float(53), nullable=True),
        sa.Column("rests_on", sa.JSON(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_judgements_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "figure", "kind", name=op.f("pk_judgements")),
    )
    op.create_table(
        "readings",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("status", sa.JSON(), nullable=False),
        sa.Column("measurement", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("log", sa.JSON(), nullable=False),
        sa.Column("not_finite", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_readings_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_readings")),
    )
    op.create_table(
        "records",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("made_sha256", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_records_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_records")),
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("global_step", sa.Integer(), nullable=False),
        sa.Column("step_time_s", sa.Float(53), nullable=True),
        sa.Column("loss", sa.Float(53), nullable=True),
        sa.Column("learning_rate", sa.Float(53), nullable=True),
        sa.Column("global_batch_size", sa.Integer(), nullable=True),
        sa.Column("consumed_samples", sa.BigInteger(), nullable=True),
        sa.Column("tflops_per_gpu", sa.Float(53), nullable=True),
        sa.Column("tokens_per_s_per_gpu", sa.Float(53), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("wall_time_s", sa.Float(53), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_steps_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_steps")),
    )
    op.create_table(
        "validations",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_validations_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_validations")),
    )
