"""Lock: what only one, or a few, of all replicas have at a time.

Names are the identity, so two of them never collide. Numbers, semaphores and serialized keys have a spelling of their
own, which no name can take.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from rota.contest import Contest
from rota.context import current_context
from rota.errors import BadInput, LockLost
from rota.hold import Hold, Wanted
from rota.keeper import Keeper

P = ParamSpec("P")
R = TypeVar("R")

_OWN = "rota:"
_LONGEST = 500


class Lock:
    """Made by `app.lock`, `app.semaphore` and `app.serialize`; may be shared by tasks, each of which holds for itself.

    `async with lock as hold:` waits until it is had and lets go at the end of the block. If it is lost before, because
    this process was cut off from the database or an operator freed it, the block is cancelled and `LockLost` is raised.
    A task that has it cannot have it once more.
    """

    def __init__(self, keeper: Callable[[], Keeper], wanted: Wanted, timeout: float | None) -> None:
        self._keeper, self._wanted = keeper, wanted
        self._timeout = _checked(timeout)
        self._holds: dict[asyncio.Task[Any] | None, Hold | None] = {}

    @property
    def name(self) -> str:
        """As the store and `rota locks` spell it."""
        return self._wanted.name

    @property
    def held(self) -> bool:
        """Whether this task has it, at this moment."""
        hold = self._mine()
        return hold is not None and hold.held

    @property
    def fence(self) -> int:
        """Grows with every acquisition, in the whole cluster: show it to what you write to, and let it refuse a
        smaller one than it has seen."""
        hold = self._mine()
        if hold is None:
            raise LockLost(f"lock {self.name!r} is not held here: it has no fence")
        return hold.fence

    async def acquire(self, timeout: float | None = None) -> Hold:
        """Wait until it is had; `LockNotAcquired` after `timeout` seconds (that of the lock if left out)."""
        hold = await self._contest(self._timeout if timeout is None else timeout).win()
        self._holds[hold.task] = hold
        return hold

    async def try_lock(self) -> bool:
        """Have it if it can be had now."""
        hold = await self._contest(None).try_once()
        if hold is not None:
            self._holds[hold.task] = hold
        return hold is not None

    async def release(self) -> None:
        """Let it go. `LockLost` if it was lost before: then what was done under it may overlap with another's."""
        hold = self._mine()
        if hold is None:
            raise LockLost(f"lock {self.name!r} is not held by this task: nothing to release")
        if hold.in_block:
            self._holds[hold.task] = None  # the block's end is to know that it is done
        else:
            del self._holds[hold.task]
        hold.leave_block()
        await hold.let_go(hold)

    async def run(self, fn: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function while it is held."""
        async with self:
            return await fn(*args, **kwargs)

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        hold.in_block = True
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        hold = self._entered()
        if hold is None:
            return  # released inside of the block
        only_ours = hold.leave_block()
        try:
            await hold.let_go(hold)
        except LockLost as loss:
            # Somebody else's cancellation goes on; ours, and whatever came of it, has this name.
            if (
                error is None
                or isinstance(error, Exception)
                or (isinstance(error, asyncio.CancelledError) and only_ours)
            ):
                raise loss from (None if isinstance(error, asyncio.CancelledError) else error)

    def _contest(self, timeout: float | None) -> Contest:
        keeper, context = self._keeper(), current_context()
        if context is not None and context.connection is not None:
            raise BadInput(
                f"lock {self.name!r} inside of a transactional run would be let go before the run is committed: use "
                "the transaction's own locks (SELECT ... FOR UPDATE), concurrency_limit, or a job without transactional"
            )
        if keeper.held_by(asyncio.current_task(), self.name):
            raise BadInput(
                f"this task holds lock {self.name!r} already, and would wait for itself: a lock is not re-entrant; "
                "take it once, further outside"
            )
        return Contest(keeper, self._wanted, _checked(timeout))

    def _mine(self) -> Hold | None:
        """What this task holds; or what one took that has ended and handed it on, as inside of `asyncio.wait_for`."""
        hold = self._holds.get(asyncio.current_task())
        if hold is None:
            ended = [each for each in self._holds.values() if each and each.task is not None and each.task.done()]
            hold = ended[0] if len(ended) == 1 else None
        return hold

    def _entered(self) -> Hold | None:
        """What this block's beginning took, also if it ends in another task (an exit stack, a fixture)."""
        task = asyncio.current_task()
        if task in self._holds:
            return self._holds.pop(task)
        blocks = [hold for hold in self._holds.values() if hold is not None and hold.in_block]
        if len(blocks) != 1:
            raise BadInput(
                f"the block of lock {self.name!r} ends in another task than it began in, and {len(blocks)} are open: "
                "call app.lock() for each"
            )
        del self._holds[blocks[0].task]
        return blocks[0]

    def __repr__(self) -> str:
        return f"<Lock {self.name!r}>"


# -- spelling --------------------------------------------------------------------------------------


def lock_name(key: tuple[str | int, ...]) -> str:
    """A string is its own name; one 64-bit number or two of 32 bits have another."""
    if any(isinstance(part, bool) or not isinstance(part, str | int) for part in key) or not key:
        raise BadInput(f"lock{key!r}: a lock has a name, one number, or two numbers")
    if len(key) == 1 and isinstance(key[0], str):
        name = _text(key[0])
        return f"{_OWN}name:{name}" if name.startswith(_OWN) else name
    numbers = [part for part in key if isinstance(part, int)]
    if len(numbers) != len(key) or len(key) > 2:
        raise BadInput(f"lock{key!r}: a lock has a name, one number, or two numbers")
    bits = 64 if len(numbers) == 1 else 32
    for number in numbers:
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise BadInput(f"lock{key!r}: {number} does not fit into {bits} bits with a sign")
    return f"{_OWN}key:{numbers[0]}" if len(numbers) == 1 else f"{_OWN}keys:{numbers[0]},{numbers[1]}"


def semaphore_name(name: str) -> str:
    return f"{_OWN}semaphore:{_text(name)}"


def serial_name(key: str | int) -> str:
    return f"{_OWN}serialize:{lock_name((key,))}"


def _text(name: str) -> str:
    if not isinstance(name, str) or not name or len(name) > _LONGEST or "\x00" in name:
        raise BadInput(f"the name of a lock is a string of 1 to {_LONGEST} characters without NUL, not {name!r:.80}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"the name of a lock must be text that UTF-8 can hold, not {name!r:.80}") from error
    return name


def limited(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadInput(f"the limit of a semaphore is 1 or more, not {limit!r}")
    return limit


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and not (timeout >= 0 and math.isfinite(timeout)):
        raise BadInput(
            f"timeout must be 0 seconds or more, not {timeout!r}; leave it out to wait for as long as needed"
        )
    return timeout
