"""A function's parameters as JSON: bound by name when a run is made, checked against the annotations when it starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import msgspec

from rota.context import Context
from rota.errors import BadInput, BadParameters

MAX_BYTES = 1_000_000


class Arguments:
    """Encodes and decodes the arguments of one function; a leading `Context` parameter is not one of them."""

    def __init__(self, fn: Callable[..., Any], job: str) -> None:
        self._job = job
        signature = inspect.signature(fn)
        hints = _hints(fn)
        parameters = list(signature.parameters.values())
        first = parameters[0] if parameters else None
        self.wants_context = first is not None and (hints.get(first.name) is Context or first.name == "ctx")
        if self.wants_context:
            parameters = parameters[1:]
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        self._open = False
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                self._open = True
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise BadInput(
                    f"job {job!r}: parameter {parameter} has no name to be stored under; "
                    "use ordinary or keyword-only parameters"
                )
            kind = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                default = parameter.default
                fields.append((parameter.name, kind, msgspec.field(default_factory=partial(_same, default))))
        self._signature = signature.replace(parameters=parameters)
        self._names = [field[0] for field in fields]
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._known = set(self._names)
        self._plainly = len(self._positional) if len(self._positional) == len(self._known) else None
        """So many arguments by position are all that there are."""
        self._needed = {field[0] for field in fields if len(field) == 2}
        self._encoder = msgspec.json.Encoder()
        struct = msgspec.defstruct(f"{job}.parameters", fields, kw_only=True, forbid_unknown_fields=not self._open)
        try:
            self._decoder = msgspec.json.Decoder(struct)
        except TypeError as error:
            raise BadInput(f"job {job!r}: a parameter's annotation cannot be read from JSON: {error}") from None

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The arguments as a JSON object by name, checked as they will be when the run starts."""
        if not kwargs and len(args) == self._plainly:
            values = dict(zip(self._positional, args, strict=True))
        else:
            values = self._bind(args, kwargs)
        try:
            encoded = self._encoder.encode(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadParameters(f"job {self._job!r}: arguments must be JSON: {error}") from None
        if len(encoded) > MAX_BYTES:
            raise BadParameters(
                f"job {self._job!r}: {len(encoded):,} bytes of arguments are more than {MAX_BYTES:,}; "
                "store the data elsewhere and pass where it is"
            )
        text = encoded.decode()
        if "\\u0000" in text:
            raise BadParameters(f"job {self._job!r}: the character NUL cannot be stored; leave it out")
        try:
            self._decoder.decode(text)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise self._misfit(text, error) from None
        return text

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. Where they fit, the signature, which is slow, need not be asked."""
        values = dict(zip(self._positional, args, strict=False)) | kwargs
        once = len(values) == len(args) + len(kwargs)
        if once and not self._open and self._needed <= values.keys() <= self._known:
            return {name: values[name] for name in self._names if name in values} if kwargs else values
        try:
            values = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise BadParameters(f"job {self._job!r}: {error}") from None
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values.update(values.pop(parameter.name, {}))
        return values

    def decode(self, parameters: str) -> dict[str, Any]:
        """Keyword arguments for the function."""
        values = msgspec.structs.asdict(self._read(parameters))
        if self._open:
            values |= {k: v for k, v in msgspec.json.decode(parameters).items() if k not in self._known}
        return values

    def _read(self, parameters: str) -> msgspec.Struct:
        try:
            return self._decoder.decode(parameters)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise self._misfit(parameters, error) from None

    def _misfit(self, parameters: str, error: Exception) -> BadParameters:
        return BadParameters(f"job {self._job!r}: parameters {parameters[:200]} do not fit: {error}")


def _same(value: Any) -> Any:
    return value


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception:
        # An annotation that cannot be resolved is no reason to refuse the job; its value is passed on as it is.
        return {}
