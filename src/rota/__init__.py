"""rota: a service of many replicas that behaves as if it were one."""

from rota.app import Rota
from rota.context import Context, TickInfo, current_context
from rota.errors import (
    BadExpression,
    BadInput,
    BadParameters,
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
from rota.job import Call, Job
from rota.lock import Lock
from rota.policy import Breaker, Retry
from rota.run import Run
from rota.schedule import Schedule
from rota.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "BadExpression",
    "BadInput",
    "BadParameters",
    "Breaker",
    "Call",
    "Context",
    "Hold",
    "Job",
    "Lock",
    "LockLost",
    "LockNotAcquired",
    "Misconfigured",
    "NameClash",
    "NotFound",
    "NotOpen",
    "Permanent",
    "Retry",
    "Rota",
    "RotaError",
    "Run",
    "RunFailed",
    "Schedule",
    "SchemaMismatch",
    "Settings",
    "StaleWrite",
    "StoreUnavailable",
    "TickInfo",
    "Timeout",
    "UnknownJob",
    "UnknownTimezone",
    "WrongState",
    "current_context",
]
