"""rota: a service of many replicas that behaves as if it were one."""

from rota.app import Rota
from rota.context import Context, TickInfo, cluster_context, current_context
from rota.contract.roles import Fence
from rota.errors import (
    BadExpression,
    BadInput,
    BadParameters,
    Forked,
    LeadershipLost,
    LockLost,
    LockNotAcquired,
    Misconfigured,
    NameClash,
    NotFound,
    NotOpen,
    Permanent,
    RotaError,
    RunFailed,
    SchemaMismatch,
    StaleWrite,
    StoreUnavailable,
    Timeout,
    UnknownJob,
    UnknownTimezone,
    WrongState,
)
from rota.hold import Hold
from rota.job import AsyncJob, Call, Job, PlainJob
from rota.leader import Leadership
from rota.lock import Lock
from rota.policy import Breaker, Retry
from rota.run import Run
from rota.schedule import Schedule
from rota.settings import Settings
from rota.singleton import Singleton
from rota.snowflake import Snowflakes

__version__ = "0.1.0"

__all__ = [
    "AsyncJob",
    "BadExpression",
    "BadInput",
    "BadParameters",
    "Breaker",
    "Call",
    "Context",
    "Fence",
    "Forked",
    "Hold",
    "Job",
    "Leadership",
    "LeadershipLost",
    "Lock",
    "LockLost",
    "LockNotAcquired",
    "Misconfigured",
    "NameClash",
    "NotFound",
    "NotOpen",
    "Permanent",
    "PlainJob",
    "Retry",
    "Rota",
    "RotaError",
    "Run",
    "RunFailed",
    "Schedule",
    "SchemaMismatch",
    "Settings",
    "Singleton",
    "Snowflakes",
    "StaleWrite",
    "StoreUnavailable",
    "TickInfo",
    "Timeout",
    "UnknownJob",
    "UnknownTimezone",
    "WrongState",
    "cluster_context",
    "current_context",
]
