"""What is said to people. Names, errors and arguments are anybody's: none of them may steer the terminal."""

from __future__ import annotations

import os

import typer

_KEPT = "\n\t"
# C0 and C1, of which ESC and CSI begin what a terminal obeys, and what turns the direction of writing.
_STEERING = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEEN = {code: ascii(chr(code))[1:-1] for code in _STEERING if chr(code) not in _KEPT}
_IN_STRINGS = {code: f"\\u{code:04x}" for code in _STEERING if code >= 0x20}


def plain(text: str) -> str:
    """The text with its control characters spelled out, but for ends of lines and tabs."""
    return text.replace("\r\n", "\n").translate(_SEEN)


def on_one_line(text: str) -> str:
    return plain(text).replace("\n", "\\n")


def say(text: str = "", *, err: bool = False, fg: str | None = None) -> None:
    """Coloured only where there is a terminal, and not with NO_COLOR."""
    dull = "NO_COLOR" in os.environ or os.environ.get("TERM") in ("dumb", "unknown")
    typer.echo(typer.style(plain(text), fg=fg) if fg else plain(text), err=err, color=False if dull else None)


def say_document(text: str, *, nl: bool = True) -> None:
    """JSON or TOML: there they can be within strings only, and may be spelled so."""
    typer.echo(text.translate(_IN_STRINGS), nl=nl)


def complain(sentence: str) -> None:
    say(f"rota: {sentence}", err=True, fg="red")
