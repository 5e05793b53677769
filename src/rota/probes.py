"""Probes: what an orchestrator asks. `/livez`: the process answers. `/readyz`: this replica may be given things to do.

They have a thread of their own, and ask the control thread: handlers that block their loop do not make a replica look
dead. Only what is wrong with *this* replica makes it unready.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as TooLate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rota.errors import Misconfigured

_ANSWER_WITHIN = 3.0

NotReady = Callable[[], Coroutine[Any, Any, list[str]]]


class Probes:
    def __init__(self, address: str, not_ready: NotReady, loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        host, _, port = address.rpartition(":")
        self._not_ready, self._loop = not_ready, loop
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), self._handler())
        except (OSError, OverflowError) as error:
            raise Misconfigured(f"probes cannot listen on {address}: {error}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="rota-probes", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _reasons(self) -> list[str]:
        loop = self._loop()
        if loop is None or loop.is_closed():
            return ["this replica has stopped"]
        answer = asyncio.run_coroutine_threadsafe(self._not_ready(), loop)
        try:
            return answer.result(_ANSWER_WITHIN)
        except TooLate:
            answer.cancel()
            return [f"the database did not answer within {_ANSWER_WITHIN:g} s"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        reasons = self._reasons

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/livez":
                    self._answer(200, {"alive": True})
                elif self.path == "/readyz":
                    why = reasons()
                    self._answer(503 if why else 200, {"ready": not why, "reasons": why})
                else:
                    self._answer(404, {"error": "there are /livez and /readyz"})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        return Handler
