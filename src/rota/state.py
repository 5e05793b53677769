"""State: a value of the user's class as JSON, read back as well as it can be.

A field that is stored and fits is kept, one that is not stored has its initial value, one that the class does not have
is dropped. A field whose value does not fit any more has its initial value too, and that is reported. What cannot be
read at all is the initial state. Nothing here raises for what an older or newer version of the class has written.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Hashable
from functools import cache
from types import MethodType
from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec

from rota.errors import BadInput

S = TypeVar("S")


class StateCodec(Generic[S]):
    """How one class of state is written and read: a dataclass, a msgspec Struct, a pydantic model, or plain JSON."""

    def __init__(self, make: Callable[[], S], owner: str) -> None:
        self._make, self._owner = make, owner
        try:
            first = make()
        except Exception as error:
            raise BadInput(
                f"{owner}: the state must be a class, or a function, that gives the initial state when called with "
                f"nothing; this one says: {error}"
            ) from None
        self._kind: type[Any] = type(first)
        self._fields = _fields(self._kind)
        self._fit = _pydantic_fit if _is_pydantic(self._kind) else msgspec.convert
        self.encode(first)

    @property
    def has_fields(self) -> bool:
        return self._fields is not None

    def initial(self) -> S:
        return self._make()

    def encode(self, state: S) -> str:
        try:
            if _is_pydantic(type(state)):
                text = cast(Any, state).model_dump_json()
            else:
                text = msgspec.json.encode(state).decode()
        except (TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"{self._owner}: the state must be JSON: {error}") from None
        return str(text)

    def decode(self, text: str) -> tuple[S, str | None]:
        """The state, and what could not be read of it."""
        try:
            stored = msgspec.json.decode(text)
            if self._fields is None:
                return cast(S, self._fit(stored, self._kind)), None
            if not isinstance(stored, dict):
                raise TypeError(f"an object was expected, not {type(stored).__name__}")
            fitting, odd = {}, []
            for key, (name, kind) in self._fields.items():
                if key in stored:
                    try:
                        fitting[name] = self._fit(stored[key], kind)
                    except Exception as error:
                        odd.append(f"{name}: {_line(error)}")
            return _replaced(self.initial(), fitting), "; ".join(odd) or None
        except Exception as error:
            return self.initial(), _line(error)


def _is_pydantic(kind: type[Any]) -> bool:
    return hasattr(kind, "model_fields") and hasattr(kind, "model_dump_json")


def _fields(kind: type[Any]) -> dict[str, tuple[str, Any]] | None:
    """By the name under which each field is stored: its own name and its type. None for a class that has none."""
    if _is_pydantic(kind):
        return {name: (name, field.annotation) for name, field in kind.model_fields.items()}
    if issubclass(kind, msgspec.Struct):
        return {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(kind)}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {field.name: (field.name, hints[field.name]) for field in dataclasses.fields(kind)}
    return None


def _pydantic_fit(value: Any, kind: Any) -> Any:
    from pydantic import TypeAdapter  # whoever has a model has it

    return TypeAdapter(kind).validate_python(value)


def _replaced(state: S, values: dict[str, Any]) -> S:
    if _is_pydantic(type(state)):
        return cast(S, type(state).model_validate({**cast(Any, state).model_dump(), **values}))  # type: ignore[attr-defined]
    if isinstance(state, msgspec.Struct):
        return cast(S, msgspec.structs.replace(state, **values))
    given = {field.name for field in dataclasses.fields(cast(Any, state)) if field.init}
    made = dataclasses.replace(cast(Any, state), **{name: value for name, value in values.items() if name in given})
    for name in values.keys() - given:
        object.__setattr__(made, name, values[name])
    return cast(S, made)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


class StateView:
    """Stands for a state: reads go to it, and an assignment is saved before it returns."""

    __slots__ = ("_changed", "_target")

    def __init__(self, target: Any, changed: Callable[[Any, str, Any], None]) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_changed", changed)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return type(self._target)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.ismethod(found) and found.__self__ is self._target:
            return MethodType(found.__func__, self)  # what a method assigns to `self` is saved too
        return found

    def __copy__(self) -> Any:
        return copy.copy(self._target)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._target, memo)

    def __setattr__(self, name: str, value: Any) -> None:
        self._changed(self._target, name, value)

    def __eq__(self, other: object) -> bool:
        return bool(self._target == getattr(other, "_target", other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._target)


@cache
def _view_of(kind: Hashable) -> type[StateView]:
    """One that `dataclasses.replace` takes for what it stands for."""
    if not dataclasses.is_dataclass(kind):
        return StateView
    return type("StateView", (StateView,), {"__slots__": (), "__dataclass_fields__": kind.__dataclass_fields__})


def view(state: Any, changed: Callable[[Any, str, Any], None]) -> StateView:
    """Something that stands for the state, and calls `changed` for every assignment."""
    return _view_of(cast(Hashable, type(state)))(state, changed)
