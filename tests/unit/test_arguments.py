"""Arguments are bound as Python binds them, whichever way they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rota.arguments import Arguments
from rota.errors import BadParameters
from rota.job import Call
from rota.run import Run


def plain(a: int, b: int = 2) -> None: ...
def named(a: int, *, b: int, c: int = 3) -> None: ...
def nothing() -> None: ...
def anything(a: int = 1, **more: int) -> None: ...


CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((), {"a": 1}), ((1,), {"a": 1}), ((1,), {"b": 5}),
    ((), {"b": 5, "a": 1}), ((), {"b": 5}), ((1,), {"c": 5, "b": 6}), ((1,), {"c": 5}), ((1,), {"more": 5}),
    ((), {"x": 5}),
]  # fmt: skip


@pytest.mark.parametrize("fn", [plain, named, nothing, anything])
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_they_fit_where_a_call_would(fn: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    arguments = Arguments(fn, "job")
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs).arguments
    except TypeError as error:
        with pytest.raises(BadParameters, match=str(error)):
            arguments.encode(args, kwargs)
        return
    wanted = bound | bound.pop("more", {})
    assert list(msgspec.json.decode(arguments.encode(args, kwargs)).items()) == list(wanted.items())


def test_a_handle_may_be_named_in_a_signature() -> None:
    """It is nobody's JSON, and no reason to refuse the job."""

    def follow(n: int, after: Run[int] | None = None, then: Call[int] | None = None) -> Run[int] | None: ...

    assert Arguments(follow, "follow").encode((1,), {}) == '{"n":1}'
