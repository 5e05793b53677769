"""A user's editor knows everything: what mypy --strict says of user code."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

USER_CODE = """
from rota import Context, Rota, Run

app = Rota()

@app.job(retry=5)
async def resize(path: str, width: int = 800) -> int:
    return width

@app.job()
def shout(ctx: Context, text: str) -> str:
    return text.upper()

@app.cron("0 3 * * *", timezone="Europe/Paris")
async def close_books(ctx: Context) -> None: ...

async def main() -> None:
    reveal_type(await resize.enqueue("a.png", width=3))          # Run[int]
    reveal_type(await (await shout.enqueue("a")).result())       # str
    reveal_type(await resize.using(key="k").enqueue("a.png"))    # Run[int]
    reveal_type(await resize.enqueue_many([resize.call("a")]))   # list[Run[int]]
    async with app.client() as client:
        reveal_type(client)                                      # Rota
    await resize.enqueue(3)                                      # error: arg-type
    await resize.enqueue("a.png", height=3)                      # error: call-arg
    await resize.enqueue()                                       # error: call-arg
    await shout.enqueue(1)                                       # error: arg-type
    await close_books.enqueue("x")                               # error: call-arg
    await resize.using(key=3).enqueue("a.png")                   # error: arg-type

def plain() -> None:
    with app as opened, app.client() as client:
        reveal_type(opened)                                      # Rota
        reveal_type(client)                                      # Rota
    reveal_type(app.client().open_until_exit())                  # Rota
    reveal_type(app.wait(resize.enqueue("a.png")))               # Run[int]
    reveal_type(app.wait(app.wait(shout.enqueue("a")).result(), timeout=3))  # str
    app.wait(resize)                                             # error: arg-type
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says, by line."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user.py").write_text(USER_CODE)
    output, errors, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(folder), str(folder / "user.py")])
    assert errors == ""
    found: dict[int, str] = {}
    for line in output.splitlines():
        if Path(line.split(":")[0]).name == "user.py":
            number = int(line.split(":")[1])
            found[number] = found.get(number, "") + line
    return found


def test_every_remark_in_the_user_code_is_what_mypy_says(said: dict[int, str]) -> None:
    checked = 0
    for number, line in enumerate(USER_CODE.splitlines(), 1):
        _, mark, remark = line.partition("  # ")
        if not mark:
            assert number not in said, said[number]
            continue
        kind, _, rest = remark.strip().partition(": ")
        if kind == "error":
            assert f"[{rest}]" in said.get(number, ""), line
        else:
            bare = said[number].replace("rota.run.", "").replace("rota.app.", "").replace("builtins.", "")
            assert f'Revealed type is "{kind}"' in bare, said[number]
        checked += 1
    assert checked == 17
