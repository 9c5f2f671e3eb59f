"""A trial whose runs are in the metrics store, for tests of what is said of it."""

from stored import publish

from steptime.clusters.base import JobState, JobStatus
from steptime.judging.trial_answers import TrialAnswer, round_runs, trial_state
from steptime.recipes.models import TrialPosition, TrialRules
from steptime.store.run_models import Check, Verdict

DAG_RUN = ("steptime_trial", "manual__2026-11-21")
VARIANTS = ("default", "ring", "broken")
RULES = TrialRules(
    trial="nccl-ring",
    variants=VARIANTS,
    left_out={"tensor_parallel=3": "8 GPUs are no multiple of 3."},
    least_difference_percent=1,
    stop_when="all within",
    rounds_max=16,
    gpu_hours_max=100,
    gpu_hours_of_run=dict.fromkeys(VARIANTS, 1),
    seed=0,
    same_nodes=True,
)
OUT_OF_MEMORY = "CUDA out of memory: 20.00 GiB could not be allocated"


class StoredTrial:
    """Stores the runs of a trial."""

    def __init__(self, store, make_result, rules=RULES):
        self.store, self.make_result, self.rules = store, make_result, rules
        self.number = 0

    def ran(self, variant, number, step_time_s, **fields):
        """Store a run of a variant in a round; None for one whose training failed."""
        self.number += 1
        position = TrialPosition(
            rules=self.rules, variant=variant, round=number, index=VARIANTS.index(variant)
        )
        shared = {
            "step_times": [step_time_s or 1.0] * 20,
            "submitted_at": 1.7e9 + 3600 * self.number,
            "dag_run_id": DAG_RUN[1],
            **fields,
        }
        if step_time_s is None:
            check = Check(name="job_succeeded", passed=False, message=OUT_OF_MEMORY)
            shared |= {
                "status": JobStatus(state=JobState.FAILED, started_at=1.7e9, ended_at=1.7e9 + 60),
                "verdict": Verdict(checks=(check,)),
            }
        plain = self.make_result(f"trial-{self.number:02}", **shared)
        changes = {"trial": position, "repeat": number}
        task = {"dag_id": DAG_RUN[0], "task_id": "performance.wait", "map_index": self.number - 1}
        publish(
            self.store,
            self.make_result(
                f"trial-{self.number:02}",
                **shared,
                run=plain.submitted.run.model_copy(update=changes),
                provenance=plain.submitted.provenance.model_copy(update=task),
            ),
        )

    def answer(self, complete=None):
        rules, runs = round_runs(self.store, self.store.list_runs(*DAG_RUN), [])
        assert rules == self.rules
        return TrialAnswer(rules, trial_state(rules, runs, complete=complete), runs)


def run_rounds(trial, seconds, rounds):
    """Store that many rounds of runs with these step times in seconds; None for a training that fails."""
    for number in range(1, rounds + 1):
        for variant, step_time_s in seconds.items():
            if step_time_s is not None or number == 1:
                # One per mille of noise that all variants of a round have, and as much of their own.
                noise = 1 + 0.001 * (number % 3) + 0.001 * (len(variant) * number % 4)
                trial.ran(variant, number, step_time_s and step_time_s * noise)
