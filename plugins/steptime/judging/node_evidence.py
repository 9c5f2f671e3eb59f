"""Read the training runs of the last weeks from the store, as evidence on nodes."""

from steptime.judging.judgements import hidden_series, judge_now
from steptime.judging.node_effects import EVIDENCE_S, NodeRun, as_evidence, node_runs
from steptime.judging.series import by_series
from steptime.recipes.models import Mode
from steptime.store import judgement_queries
from steptime.store.run_queries import Store


def read_node_runs(store: Store, until: float, cluster: str | None = None) -> list[NodeRun]:
    """Return the training runs of the four weeks before `until` (Unix time) that have a judgement.

    Only those of `cluster`, unless it is None. A series with runs that the store's user may not read is
    judged by the others.
    """
    since = until - EVIDENCE_S
    scope = {"mode": Mode.PERFORMANCE} | ({} if cluster is None else {"cluster": cluster})
    rows = by_series(judgement_queries.times_with_baselines(store, since, until, scope))
    hidden = hidden_series(store)
    runs: list[NodeRun] = []
    for series, judged in rows.items():
        if series in hidden:
            within = (
                judgement
                for judgement in judge_now(store, series)
                if since <= judgement.run.row["submitted_at"] <= until
            )
            runs += node_runs(series, as_evidence(within))
        else:
            runs += node_runs(series, judged)
    return runs
