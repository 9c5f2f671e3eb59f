"""A stand-in for Run:ai, for tests: no Run:ai can be had where they run.

It answers the endpoints that steptime uses in the form that Run:ai's own generated client expects, walks
workloads through Run:ai's phases, and runs their commands as processes of this machine. Faults are switched
on from the test. It is no Run:ai: there are no containers, no images, no volumes but folders, and how the
real one schedules, preempts and times things is only imitated.
"""

from stand_ins.runai.faults import Fault
from stand_ins.runai.server import RunaiStandIn

__all__ = ["Fault", "RunaiStandIn"]
