"""Every error rota raises on purpose. Each names the thing, the place and the way out."""

from __future__ import annotations


class RotaError(Exception):
    """Base of all errors that rota raises on purpose."""


class BadInput(RotaError, ValueError):
    """Something the caller wrote cannot be accepted; nothing was changed."""


class BadExpression(BadInput):
    """A schedule expression that cannot be read, or that would never fire."""

    def __init__(self, expression: str, reason: str, *, field: str | None = None, value: str | None = None) -> None:
        where = f" in field {field!r}" if field else ""
        what = f": {value!r}" if value is not None else ""
        super().__init__(f"bad schedule expression {expression!r}{where}{what}: {reason}")
        self.expression, self.field, self.value, self.reason = expression, field, value, reason


class UnknownTimezone(BadInput):
    """A time zone name that the IANA database does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown time zone {name!r}: use an IANA name such as 'Europe/Paris' or 'UTC'")
        self.name = name


class Misconfigured(BadInput):
    """A setting, or the relation between two settings, that cannot work."""


class PooledConnection(Misconfigured):
    """A pooler between this process and Postgres does not keep a session, and a session is needed."""

    def __init__(self, mode: str, where: str = "the url") -> None:
        what = f"{where} leads through a pooler in {mode} mode"
        if mode == "statement":
            super().__init__(f"{what}, which has no transactions: set its pool_mode to transaction or session")
        else:
            super().__init__(
                f"{what}, which breaks session locks and LISTEN: give control_url= (ROTA_CONTROL_URL) a direct address "
                "of the same database, or choose the elector lease (ROTA_ELECTOR=lease)"
            )
        self.mode = mode


class BadParameters(BadInput):
    """Arguments that do not fit the job's signature."""


class NameClash(BadInput):
    """Two different declarations under one name."""


class UnknownJob(RotaError, LookupError):
    """A job name that this app does not declare."""


class NotFound(RotaError, LookupError):
    """No such run or schedule."""


class NotOpen(RotaError, RuntimeError):
    """The app is used before it was opened or after it was closed."""

    def __init__(self) -> None:
        super().__init__(
            "this Rota is not open: use `async with app:` to run as a replica, "
            "or `async with app.client():` to enqueue and look without running anything "
            "(in a program without an event loop: `with`)"
        )


class Forked(RotaError, RuntimeError):
    """The app was opened before this process was forked off, and belongs to the parent."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"this Rota was opened in process {pid}, which then forked this one: its thread and its connections stayed "
            "there. Open it after the fork, in each child (gunicorn: post_worker_init), or start children by spawn"
        )
        self.pid = pid


class WrongState(RotaError):
    """The run is in a state in which this cannot be done."""


class StaleWrite(RotaError):
    """Somebody else changed the row since it was read; nothing was written. Read it again, then decide."""


class RunLost(RotaError):
    """This run was taken over by another replica; what this one did after that is not recorded."""


class RunFailed(RotaError):
    """`run.result()` on a run that failed, was cancelled or was skipped."""

    def __init__(self, run_id: int, job_id: str, state: str, why: str | None) -> None:
        super().__init__(f"run {run_id} of job {job_id!r} {state}" + (f": {why}" if why else ""))
        self.run_id, self.job_id, self.state, self.why = run_id, job_id, state, why


class Timeout(RotaError, TimeoutError):
    """It did not happen in the time given."""


class StoreUnavailable(RotaError):
    """The database cannot be reached or used now; the sentence says which and what to do."""


class StoreUnfit(StoreUnavailable):
    """The database cannot be used as it is; to wait would not mend it."""


class CannotListen(RotaError):
    """Hints cannot be heard this way, now or later; without them everything still happens, within a beat or two."""


class TransactionLost(StoreUnavailable):
    """The connection of a transactional run broke before its COMMIT: nothing that it wrote remains."""


class SchemaMismatch(RotaError):
    """The store's tables are of a version that this rota cannot use; the sentence says what to do."""


class Permanent(RotaError):
    """Raise it in a handler to fail the run at once, whatever retries are left."""


class LeadershipLost(RotaError):
    """A write or a confirmation of a leader whose term is over. Nothing was written; stop acting as leader."""


class LockLost(RotaError):
    """A lock that this process held is not its own any more; what it protected must stop."""


class LockNotAcquired(RotaError, TimeoutError):
    """A lock could not be had in time."""


class NoKubernetes(RotaError):
    """There is no cluster to ask: this process is not in a pod, and there is no kubeconfig."""


class KubernetesUnavailable(RotaError):
    """The Kubernetes API cannot be reached or used now; the sentence says where, and what was tried."""


class KubernetesDenied(KubernetesUnavailable):
    """The Kubernetes API refuses this user; the sentence names the rule that is missing."""
