"""The command line: `rota`. One file per noun."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point; says what to install when the extra is missing."""
    try:
        from rota.cli.main import app
    except ImportError as error:
        sys.exit(f"rota: the command line needs {error.name!r}: pip install 'rota[cli]'")
    app()
