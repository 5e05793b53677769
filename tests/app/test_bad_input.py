"""What is of the wrong kind is refused where it is said, by a sentence, and nothing is made."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota import BadInput, Retry, Rota
from tests.harness import execute


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"retry": 1.5}, "retry must be a whole number"),
        ({"retry": "x"}, "retry must be a whole number"),
        ({"timeout": "5"}, "timeout must be above 0"),
        ({"concurrency_limit": "1"}, "concurrency_limit must be 0"),
        ({"breaker": "x"}, "breaker must be a whole number"),
        ({"priority": 2.5}, "priority must be a whole number"),
    ],
)
def test_a_policy_of_the_wrong_kind(policy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Rota("sqlite:///unused.db").job(**policy)


@pytest.mark.parametrize(
    "options", [{"on": ("OSError",)}, {"on": OSError}, {"give_up_on": (1,)}, {"base": "2"}, {"attempts": 1.5}]
)
def test_a_retry_of_the_wrong_kind(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"retry|tuples of exception classes"):
        Retry(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delay": "1h"}, "delay must be seconds or a timedelta"),
        ({"run_at": "tomorrow"}, "run_at must be a datetime"),
        ({"priority": "1"}, "priority must be a whole number"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "either delay or run_at"),
    ],
)
def test_an_option_of_the_wrong_kind(options: dict[str, Any], sentence: str) -> None:
    app = Rota("sqlite:///unused.db")

    @app.job
    async def work() -> None: ...

    with pytest.raises(BadInput, match=sentence):
        work.using(**options)


async def test_what_is_no_call_of_a_job_of_this_app(url: str, tmp_path: Path) -> None:
    app, other = Rota(url), Rota(f"sqlite:///{tmp_path}/other.db")

    @app.job
    async def work() -> None: ...

    @app.job
    async def second() -> None: ...

    @other.job
    async def theirs() -> None: ...

    stream: Any = (work.call() async for _ in _nothing())
    async with app.client():
        for wrong in ([1], [work], "abc", work.call(), stream, 5):
            with pytest.raises(BadInput, match=r"no call of a job|takes a list of calls"):
                await app.enqueue_many(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="no call of a job"):
            await app.enqueue("work")  # type: ignore[arg-type]
        for enqueue in (app.enqueue(theirs.call()), app.enqueue_many([work.call(), theirs.call()])):
            with pytest.raises(BadInput, match="<Job theirs> belongs to another Rota"):
                await enqueue
        with pytest.raises(BadInput, match="<Job work> was given a call of <Job second>"):
            await work.enqueue_many([second.call()])
        assert await execute(url, "select count(*) from job_runs") == [(0,)]


async def _nothing() -> Any:
    return
    yield
