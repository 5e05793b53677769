"""Door: the part of an app that is about its opening. An app is open in one event loop of one process at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from rota.background import Background, Opening
from rota.errors import BadInput, NotOpen
from rota.portal import Portal
from rota.settings import Settings

T = TypeVar("T")


class Door(ABC):
    """Whatever can be opened by `async with` can be opened without an event loop too."""

    settings: Settings
    _portal: Portal | None = None
    _background: Background[Any] | None = None
    _opening = threading.Lock()

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def _client(self) -> AbstractAsyncContextManager[Self]: ...

    def __enter__(self) -> Self:
        """Run as a replica in the background, on a thread with an event loop of its own, until the block ends."""
        background = Background(self)
        background.open()
        self._background = background
        return self

    def __exit__(self, *_: object) -> None:
        background, self._background = self._background, None
        if background is not None:
            background.close()

    def open_until_exit(self) -> Self:
        """Run as a replica in the background from now on, and stop when the process exits, once its main thread has
        ended: for servers that leave no place for `with`."""
        Background(self).open_until_exit(self._exit_patience())
        return self

    def client(self) -> Opening[Self]:
        """Open the store only: enqueue, wait, look and edit, without running anything here.

        `async with app.client():`, or `with app.client():` in a program without an event loop.
        """
        return Opening(self._client, self._exit_patience())

    def wait(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop in which the app is open, and wait for it in this thread, which has no loop.

        `run = app.wait(resize.enqueue("a.png"))`. It is cancelled after `timeout` seconds, and by Ctrl-C.
        """
        if not isinstance(coroutine, Coroutine):
            raise BadInput(f"app.wait() takes a coroutine such as job.enqueue(...), not {type(coroutine).__name__}")
        if self._portal is None:
            coroutine.close()
            raise NotOpen
        return self._portal.wait(coroutine, timeout)

    @contextmanager
    def _entrance(self) -> Iterator[Portal]:
        """One at a time opens it; until it is closed again it is that one's."""
        with self._opening:
            self._refuse_if_open()
            self._portal = portal = Portal()
        try:
            yield portal
        finally:
            portal.close()
            self._portal = None

    def _refuse_if_open(self) -> None:
        if self._portal is not None:
            self._portal.check_process()
            raise BadInput("this Rota is open already")

    def _exit_patience(self) -> float:
        """Seconds after which an exit goes on without us: more than a stop takes, whatever the handlers do."""
        return self.settings.shutdown_timeout + self.settings.step_down_timeout + 30.0
