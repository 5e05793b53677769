"""A fleet of real replica processes, for the demo and the soak."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Fleet:
    """Processes of `rota run TARGET` on one database."""

    target: str
    url: str
    log: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "rota", "run", self.target, "--name", name, "--log-level", "warning"]
        with open(self.log, "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=os.environ | {"ROTA_URL": self.url}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self, name: str) -> int:
        """kill -9: no goodbye."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return process.pid

    async def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            await asyncio.to_thread(process.wait, 30)

    def said(self) -> str:
        """The end of what the replicas wrote."""
        return Path(self.log).read_text()[-5000:] if Path(self.log).exists() else ""

    def abandon(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
