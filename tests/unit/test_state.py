"""State of a singleton: classes change, stored state does not, and nothing that was written may stop the next body."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import BadInput
from rota.state import StateCodec, view


@dataclass
class Position:
    offset: int = 0
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    offset: int = 7


class Tagged(msgspec.Struct, rename="camel"):
    last_offset: int = 0
    note: str | None = None


class Model(pydantic.BaseModel):
    offset: int = 0
    ratio: float = pydantic.Field(default=0.5, ge=0, le=1)


def codec(kind: Any) -> StateCodec[Any]:
    return StateCodec(kind, "singleton 'x'")


@pytest.mark.parametrize(
    "state",
    [Position(3, ["a"]), Frozen(1), Tagged(last_offset=5, note="n"), Model(offset=2, ratio=0.25), {"any": [1, None]}],
    ids=lambda state: type(state).__name__,
)
def test_what_is_written_is_read_back(state: Any) -> None:
    made = codec(type(state) if not isinstance(state, dict) else dict)
    assert made.decode(made.encode(state)) == (state, None)


def test_fields_that_match_are_kept_new_ones_have_defaults_and_unknown_ones_are_dropped() -> None:
    assert codec(Position).decode('{"offset": 5, "gone": 1}') == (Position(5, []), None)
    assert codec(Tagged).decode('{"lastOffset": 5, "gone": 1}') == (Tagged(last_offset=5), None)
    assert codec(Model).decode('{"offset": 5, "gone": 1}') == (Model(offset=5), None)


@pytest.mark.parametrize("kind", [Position, Model], ids=lambda kind: kind.__name__)
def test_a_field_that_does_not_fit_has_its_initial_value_and_is_named(kind: Any) -> None:
    text = '{"offset": "far", "names": ["kept"]}' if kind is Position else '{"offset": "far", "ratio": 0.75}'
    state, reason = codec(kind).decode(text)
    assert state == (Position(0, ["kept"]) if kind is Position else Model(ratio=0.75))
    assert reason is not None
    assert reason.startswith("offset: ")


def test_a_value_that_the_class_itself_refuses_gives_the_initial_state() -> None:
    @dataclass
    class Careful:
        offset: int = 0

        def __post_init__(self) -> None:
            if self.offset < 0:
                raise ValueError("never below 0")

    assert codec(Careful).decode('{"offset": -1}') == (Careful(), "ValueError: never below 0")


def test_a_state_class_that_cannot_begin_is_refused_where_it_is_declared() -> None:
    @dataclass
    class Needy:
        offset: int

    with pytest.raises(BadInput, match="initial state when called with nothing"):
        codec(Needy)
    with pytest.raises(BadInput, match="must be JSON"):
        codec(object)


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps)


@given(st.text() | JSON)
def test_nothing_that_is_stored_can_make_it_raise(text: str) -> None:
    for kind in (Position, Frozen, Tagged, Model):
        state, _ = codec(kind).decode(text)
        assert type(state) is kind


KINDS: dict[type, Any] = {int: st.integers(-9, 9), str: st.text(max_size=3), bool: st.booleans(), float: st.just(0.5)}
VERSIONS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(list(KINDS)), max_size=6)


@given(VERSIONS, VERSIONS, st.data())
def test_a_class_may_change_in_any_way_between_two_versions(
    old: dict[str, type], new: dict[str, type], data: st.DataObject
) -> None:
    """Of every field that both have with the same type the value is kept; every other has its default."""
    before, after = (
        make_dataclass("State", [(name, kind, field(default=kind())) for name, kind in sorted(fields.items())])
        for fields in (old, new)
    )
    values = {name: data.draw(KINDS[kind], label=name) for name, kind in old.items()}
    state, reason = codec(after).decode(codec(before).encode(before(**values)))
    for name, kind in new.items():
        if old.get(name) is kind:
            assert getattr(state, name) == values[name]
        elif name not in old:
            assert getattr(state, name) == kind()
    if all(old.get(name, kind) is kind for name, kind in new.items()):
        assert reason is None


def test_a_view_reads_through_and_saves_what_is_assigned() -> None:
    saved: list[tuple[str, Any]] = []

    def changed(target: Any, name: str, value: Any) -> None:
        saved.append((name, value))
        setattr(target, name, value)

    target = Position()
    seen: Any = view(target, changed)
    assert isinstance(seen, Position)
    assert dataclasses.replace(seen, offset=9) == Position(9)
    seen.offset += 2
    assert (saved, target.offset, seen == Position(2), repr(seen)) == ([("offset", 2)], 2, True, repr(target))
