"""What a test of jobs and schedules needs: a clock that moves, runs that are run here and now, replicas that die."""

from rota.testing.clock import Clock
from rota.testing.cluster import Cluster, cluster
from rota.testing.enqueued import all_enqueued, assert_enqueued, refute_enqueued
from rota.testing.inline import Inline, inline
from rota.testing.member import Member
from rota.testing.ran import Ran

__all__ = [
    "Clock",
    "Cluster",
    "Inline",
    "Member",
    "Ran",
    "all_enqueued",
    "assert_enqueued",
    "cluster",
    "inline",
    "refute_enqueued",
]
