"""A fleet of real replica processes, for the demo and the soak. None of them outlives the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rota.errors import BadInput
from rota.store import Store

TARGET = "rota.cli.sample:app"
_JOINED_WITHIN, _LEFT_WITHIN = 120.0, 15.0  # a disk may stall for half a minute


@dataclass
class Fleet:
    """Processes of `rota run rota.cli.sample:app` on one database."""

    url: str
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "rota.cli.tether", "run", TARGET, "--name", name, "--log-level", "warning"]
        # All of them are on this machine, and one address cannot be listened on twice.
        environment = os.environ | {"ROTA_PROBES": ""} | self.environment | {"ROTA_URL": self.url}
        with open(self.log, "ab") as log:
            # In a session of its own: Ctrl-C in the terminal is for the demo, which then ends its replicas in order.
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    async def joined(self, store: Store) -> None:
        """Wait until all have joined; `BadInput` with what they said when one ends, or does not come."""
        deadline = time.monotonic() + _JOINED_WITHIN
        pids = {process.pid for process in self.processes.values()}
        while not pids <= {row.pid for row in await store.list_replicas()}:
            self.check()
            if time.monotonic() > deadline:
                raise BadInput(f"the replicas did not join within {_JOINED_WITHIN:g} s. They said:\n{self.said()}")
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """`BadInput` with what the replicas said if one has ended that nobody killed."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                raise BadInput(f"replica {name} ended by itself, with exit code {code}. It said:\n{self.said()}")

    def freeze(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> int:
        """kill -9: no goodbye."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        _reap(process)
        return process.pid

    async def stop(self) -> None:
        """Let them leave in order; who takes too long for that is left to `abandon`."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _LEFT_WITHIN)

    def abandon(self) -> None:
        """End whatever still runs, now."""
        for process in self.processes.values():
            process.kill()
            _reap(process)

    def said(self) -> str:
        """The end of what the replicas wrote."""
        said = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return said[-3000:] or "(nothing)"


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
