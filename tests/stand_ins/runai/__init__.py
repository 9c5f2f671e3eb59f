"""A stand-in for Run:ai, as there is no Run:ai where tests run.

It answers the endpoints that steptime uses in the form that Run:ai's own generated client expects, takes
workloads through Run:ai's phases, and runs their commands as processes of this machine. Tests switch its
faults on. It is not Run:ai: there are no containers, no images and no volumes but folders, and it only
imitates how the real one schedules, preempts and times.
"""

from stand_ins.runai.faults import Fault
from stand_ins.runai.server import RunaiStandIn

__all__ = ["Fault", "RunaiStandIn"]
