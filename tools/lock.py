"""Renew requirements.lock and requirements-dev.lock: every version and hash that `make` installs."""

from __future__ import annotations

import subprocess
import sys

COMPILE = [
    sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--upgrade",
    "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "pyproject.toml",
]  # fmt: skip
RUN = ["--extra", "cli", "--group", "build"]


def main() -> None:
    subprocess.run([*COMPILE, *RUN, "-o", "requirements.lock"], check=True)
    extras = [word for name in ("embedded", "fast", "telemetry", "kubernetes") for word in ("--extra", name)]
    dev = [*extras, "--group", "dev", "--group", "bench", "--group", "docs"]
    subprocess.run([*COMPILE, *RUN, *dev, "-o", "requirements-dev.lock"], check=True)


if __name__ == "__main__":
    main()
