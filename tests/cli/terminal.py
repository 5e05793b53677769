"""A terminal of 80 x 24, with somebody who may type Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

_PATIENCE = 10.0


def on_a_terminal(*arguments: str, interrupt_at: str | None = None, **environment: str) -> tuple[int, str]:
    """Run `rota` there; Ctrl-C is typed when it shows this. The exit code, and all it wrote.

    A person whose Ctrl-C has no effect types it again: in the instant in which Python begins to wait for a line, it is
    noticed with the next key only.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "rota", *arguments], env=kept | {"TERM": "xterm-256color"} | environment,
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(follower)
    written, interrupted = b"", False
    try:
        while True:
            if interrupted and not select.select([leader], [], [], _PATIENCE)[0]:
                os.write(leader, b"\x03")
            if not (chunk := os.read(leader, 65536)):
                break
            written += chunk
            if not interrupted and interrupt_at is not None and interrupt_at.encode() in written:
                interrupted = True
                os.write(leader, b"\x03")
    except OSError:
        pass  # the other end was closed
    os.close(leader)
    return process.wait(60), written.decode()
