"""The base of all bodies: a frozen dataclass whose fields name their JSON members, read and written as fastjson does.

A body says for each field how its member is called and what it holds; reading is as lenient as Java's (members in any
order, unknown ones skipped, null and missing ones the default), and everything else is a :class:`MalformedBody` that
names the member. Writing gives fastjson's own text: compact, members by name, nulls left out, Java's bare objects as
keys of maps.

Threads: any. Bodies are immutable.
Source: remoting specification 5.1.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar, cast

from cometmq.errors import MalformedBody
from cometmq.store_config.errors import ConfigError, ConfigValueError
from cometmq.store_config.fastjson import (
    BODY_LIMITS,
    REQUEST_LIMITS,
    JsonKey,
    JsonObject,
    JsonValue,
    Layout,
    Limits,
    ObjectKey,
    dumps,
    encode,
    loads,
)
from cometmq.store_config.fields import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Fields, as_int

__all__ = [
    "BODY_LIMITS",
    "INT32",
    "INT64",
    "REQUEST_LIMITS",
    "TEXT",
    "Body",
    "Codec",
    "KeyCodec",
    "ListCodec",
    "MapCodec",
    "body_codec",
    "boolean",
    "decode_body",
    "double",
    "enumeration",
    "foreign",
    "int32",
    "int64",
    "json_object",
    "list_of",
    "map_of",
    "nested",
    "optional_int64",
    "optional_list_of",
    "optional_map_of",
    "optional_nested",
    "optional_text",
    "text",
    "value_of",
]

T = TypeVar("T")
K = TypeVar("K")
E = TypeVar("E", bound=enum.Enum)
B = TypeVar("B", bound="Body")

_WIRE = "wire"

_REFERENCE = "$ref"
_REFERENCE_BYTES = b"$ref"
_REFERENCED_VALUES_MAX = 1_000_000
_PATH_STEP = re.compile(r"(?:(\.)([^.\[\]]+)|(\[[0-9]{1,9}\]))")


# --- Reading and writing one value ------------------------------------------------------------------------------------


class Codec(ABC, Generic[T]):
    """How a value of one type stands in JSON."""

    @abstractmethod
    def read(self, fields: Fields, name: JsonKey) -> T | None:
        """Return the member, or None where it is missing or null. ConfigValueError where it is something else."""

    def write(self, value: T) -> JsonValue:
        """Return the value as JSON."""
        return cast(JsonValue, value)


class KeyCodec(Codec[T]):
    """The same of a type that is a map's key, too."""

    @abstractmethod
    def key(self, key: JsonKey, member: str) -> T:
        """Return a key of the map ``member`` as a value. ConfigValueError where it is something else."""

    def write_key(self, value: T) -> JsonKey:
        """Return the value as a map's key."""
        return cast(JsonKey, value)


class _Text(KeyCodec[str]):
    def read(self, fields: Fields, name: JsonKey) -> str | None:
        return fields.text(name, "") if fields.has(name) else None

    def key(self, key: JsonKey, member: str) -> str:
        return str(key)


class _Integer(KeyCodec[int]):
    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum

    def read(self, fields: Fields, name: JsonKey) -> int | None:
        value = fields.value(name)
        return None if value is None else self._convert(value, fields.member(name))

    def _convert(self, value: JsonValue, member: str) -> int:
        return as_int(value, minimum=self._minimum, maximum=self._maximum, member=member)

    def key(self, key: JsonKey, member: str) -> int:
        return self._convert(key, f"key of {member}")


class _Boolean(Codec[bool]):
    def read(self, fields: Fields, name: JsonKey) -> bool | None:
        return fields.boolean(name, False) if fields.has(name) else None


class _Double(Codec[float]):
    def read(self, fields: Fields, name: JsonKey) -> float | None:
        value = fields.value(name)
        if value is None:
            return None
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return _float(value, fields.member(name))
        if isinstance(value, str):
            number = loads(value) if value.strip() else None
            if isinstance(number, int | Decimal) and not isinstance(number, bool):
                return _float(number, fields.member(name))
        raise ConfigValueError(f"expected a number, found {type(value).__name__}", member=fields.member(name))

    def write(self, value: float) -> JsonValue:
        # Not a number is null in fastjson. The digits are Java's: both give the shortest that reads back the same.
        return Decimal(repr(float(value))) if abs(value) < float("inf") else None


def _float(value: int | Decimal, member: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigValueError("the number is too large", member=member) from None


class _Enumeration(Codec[E]):
    """An enum by the name of its constant, or by its ordinal."""

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind
        self._constants = list(kind)

    def read(self, fields: Fields, name: JsonKey) -> E | None:
        value = fields.value(name)
        if value is None:
            return None
        if isinstance(value, str) and value in self._kind.__members__:
            return self._kind[value]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(self._constants):
            return self._constants[value]
        names = ", ".join(self._kind.__members__)
        raise ConfigValueError(f"expected one of {names}, found {value!r:.60}", member=fields.member(name))

    def write(self, value: E) -> JsonValue:
        return value.name


class _Nested(KeyCodec[B]):
    def __init__(self, kind: type[B]) -> None:
        self._kind = kind

    def read(self, fields: Fields, name: JsonKey) -> B | None:
        inner = fields.fields(name)
        return None if inner is None else self._kind.decode(inner)

    def write(self, value: B) -> JsonValue:
        return value.encode()

    def key(self, key: JsonKey, member: str) -> B:
        if not isinstance(key, str):
            raise ConfigValueError(f"expected an object as key, found {key!r:.60}", member=member)
        return self._kind.decode(Fields(_loads(key), f"key of {member}"))

    def write_key(self, value: B) -> JsonKey:
        return ObjectKey(dumps(value.encode(), layout=Layout.COMPACT))


class _Foreign(Codec[T]):
    """A type of another module that has its own ``decode`` and ``encode``."""

    def __init__(self, decode: Callable[[Fields, JsonKey], T], encode: Callable[[T], JsonValue]) -> None:
        self._decode = decode
        self._encode = encode

    def read(self, fields: Fields, name: JsonKey) -> T | None:
        inner = fields.fields(name)
        return None if inner is None else self._decode(inner, name)

    def write(self, value: T) -> JsonValue:
        return self._encode(value)


class _JsonObject(Codec[JsonObject]):
    def read(self, fields: Fields, name: JsonKey) -> JsonObject | None:
        inner = fields.fields(name)
        return None if inner is None else inner.others(())


class ListCodec(Codec[tuple[T, ...]]):
    """A Java list, set or array. Elements that are null are refused."""

    def __init__(self, of: Codec[T]) -> None:
        """``of`` is the codec of an element."""
        self._of = of

    def read(self, fields: Fields, name: JsonKey) -> tuple[T, ...] | None:
        """Return the elements in their order."""
        array = fields.array(name)
        if array is None:
            return None
        members: JsonObject = dict(enumerate(array))
        inner = Fields(members, fields.member(name))
        return tuple(_present(self._of.read(inner, index), inner, index) for index in range(len(array)))

    def write(self, value: tuple[T, ...]) -> JsonValue:
        """Return a JSON array."""
        return [self._of.write(item) for item in value]


class MapCodec(Codec[Mapping[K, T]], Generic[K, T]):
    """A Java map. Null values are left out."""

    def __init__(self, keys: KeyCodec[K], of: Codec[T]) -> None:
        """``keys`` is the codec of the keys, ``of`` that of the values."""
        self._keys = keys
        self._of = of

    def read(self, fields: Fields, name: JsonKey) -> Mapping[K, T] | None:
        """Return the map in the order of the text."""
        inner = fields.fields(name)
        if inner is None:
            return None
        found: dict[K, T] = {}
        for key in inner.names():
            value = self._of.read(inner, key)
            if value is not None:
                found[self._keys.key(key, fields.member(name))] = value
        return found

    def write(self, value: Mapping[K, T]) -> JsonValue:
        """Return a JSON object."""
        return {self._keys.write_key(key): self._of.write(item) for key, item in value.items()}


def _present(value: T | None, fields: Fields, name: JsonKey) -> T:
    if value is None:
        raise ConfigValueError("expected a value, found null", member=fields.member(name))
    return value


TEXT: KeyCodec[str] = _Text()
INT32: KeyCodec[int] = _Integer(INT32_MIN, INT32_MAX)
INT64: KeyCodec[int] = _Integer(INT64_MIN, INT64_MAX)
BOOLEAN: Codec[bool] = _Boolean()
DOUBLE: Codec[float] = _Double()


def body_codec(kind: type[B]) -> KeyCodec[B]:
    """Return the codec of another body, as an element or a key."""
    return _Nested(kind)


def foreign(decode: Callable[[Fields, JsonKey], T], encode: Callable[[T], JsonValue]) -> Codec[T]:
    """Return the codec of a type with functions of its own; ``decode`` gets the object and its name."""
    return _Foreign(decode, encode)


# --- Fields of a body -------------------------------------------------------------------------------------------------
# Each returns what dataclasses.field returns, under the type that the field has.


def _field(name: str, codec: Codec[Any], default: Any) -> Any:
    metadata = {_WIRE: (name, codec)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def text(name: str, default: str = "") -> str:
    """A member that Java keeps as ``String``; missing: the default."""
    return cast(str, _field(name, TEXT, default))


def optional_text(name: str) -> str | None:
    """A ``String`` that may be null, and is then left out."""
    return cast("str | None", _field(name, TEXT, None))


def int32(name: str, default: int = 0) -> int:
    """A member that Java keeps as ``int``."""
    return cast(int, _field(name, INT32, default))


def int64(name: str, default: int = 0) -> int:
    """A member that Java keeps as ``long``."""
    return cast(int, _field(name, INT64, default))


def optional_int64(name: str) -> int | None:
    """A ``Long`` that may be null, and is then left out."""
    return cast("int | None", _field(name, INT64, None))


def boolean(name: str, default: bool = False) -> bool:
    """A member that Java keeps as ``boolean``."""
    return cast(bool, _field(name, BOOLEAN, default))


def double(name: str, default: float = 0.0) -> float:
    """A member that Java keeps as ``double``."""
    return cast(float, _field(name, DOUBLE, default))


def enumeration(name: str, default: E) -> E:
    """A Java enum; the Python enum has the same names in the same order."""
    return cast(E, _field(name, _Enumeration(type(default)), default))


def nested(name: str, default: B) -> B:
    """Another body; missing: the default."""
    return cast(B, _field(name, _Nested(type(default)), default))


def optional_nested(name: str, kind: type[B]) -> B | None:
    """Another body that may be null, and is then left out."""
    return cast("B | None", _field(name, _Nested(kind), None))


def list_of(name: str, of: Codec[T]) -> tuple[T, ...]:
    """A list, set or array; missing: empty."""
    return cast("tuple[T, ...]", _field(name, ListCodec(of), ()))


def optional_list_of(name: str, of: Codec[T]) -> tuple[T, ...] | None:
    """A list, set or array that may be null, and is then left out."""
    return cast("tuple[T, ...] | None", _field(name, ListCodec(of), None))


def map_of(name: str, keys: KeyCodec[K], of: Codec[T]) -> Mapping[K, T]:
    """A map; missing: empty. Do not change it in place."""
    return cast("Mapping[K, T]", _field(name, MapCodec(keys, of), {}))


def optional_map_of(name: str, keys: KeyCodec[K], of: Codec[T]) -> Mapping[K, T] | None:
    """A map that may be null, and is then left out."""
    return cast("Mapping[K, T] | None", _field(name, MapCodec(keys, of), None))


def json_object(name: str) -> JsonObject:
    """An object of any members, kept as it is; missing: empty."""
    return cast(JsonObject, _field(name, _JsonObject(), {}))


def value_of(name: str, codec: Codec[T], default: T) -> T:
    """A member with a codec of its own."""
    return cast(T, _field(name, codec, default))


# --- Bodies -----------------------------------------------------------------------------------------------------------


class Body:
    """A body, or an object inside one. Subclasses are frozen dataclasses whose fields come from the functions above."""

    __slots__ = ()
    _members: ClassVar[dict[type[Body], tuple[tuple[str, str, Codec[Any]], ...]]] = {}

    @classmethod
    def _wire_members(cls) -> tuple[tuple[str, str, Codec[Any]], ...]:
        """Return attribute, member and codec of each field, by member name as fastjson orders them."""
        known = Body._members.get(cls)
        if known is None:
            fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
            named = ((field.name, *field.metadata[_WIRE]) for field in fields)
            known = Body._members[cls] = tuple(sorted(named, key=lambda member: str(member[1])))
        return known

    @classmethod
    def decode(cls: type[B], fields: Fields) -> B:
        """Read a decoded object. ConfigValueError where a member has the wrong form."""
        values: dict[str, Any] = {}
        for attribute, name, codec in cls._wire_members():
            value = codec.read(fields, name)
            if value is not None:
                values[attribute] = value
        return cls(**values)

    def encode(self) -> JsonObject:
        """Return the members in fastjson's order, those that are None left out."""
        members: JsonObject = {}
        for attribute, name, codec in self._wire_members():
            value = getattr(self, attribute)
            if value is not None:
                members[name] = codec.write(value)
        return members

    @classmethod
    def from_json(cls: type[B], data: bytes) -> B:
        """Read the body of a command.

        Raises:
            MalformedBody: it is empty, no JSON, or a member has the wrong form; the text names the place.
        """
        return decode_body(cls.__name__, data, cls.decode)

    @classmethod
    def from_request(cls: type[B], data: bytes) -> B:
        """Read the body of a request, which anybody may have sent.

        Raises:
            MalformedBody: as :meth:`from_json`, or it is larger than a server reads.
        """
        return decode_body(cls.__name__, data, cls.decode, limits=REQUEST_LIMITS)

    def to_json(self) -> bytes:
        """Return the body as fastjson writes it: compact, UTF-8."""
        return encode(self.encode(), layout=Layout.COMPACT)


def decode_body(what: str, data: bytes, decode: Callable[[Fields], T], *, limits: Limits = BODY_LIMITS) -> T:
    """Read one JSON object with ``decode``; ``what`` names it in errors.

    Raises:
        MalformedBody: as :meth:`Body.from_json`.
    """
    try:
        value = _loads(data, limits)
        if _REFERENCE_BYTES in data:
            value = _Resolver(value, min(_REFERENCED_VALUES_MAX, limits.parts)).resolved()
        return decode(Fields(value))
    except ConfigError as error:
        raise MalformedBody(f"{what}: {error.message}") from error


class _Resolver:
    """Puts the object itself in the place of ``{"$ref":"$.path"}``, which fastjson writes for one that it wrote before.

    Paths from the root are taken, of names and ``[n]``; fastjson's other forms, and what leads nowhere or to another
    reference, are refused: a body would else be read without what they stand for.
    """

    def __init__(self, root: JsonValue, values_max: int) -> None:
        self._root = root
        self._values_max = self._values_left = values_max

    def resolved(self) -> JsonValue:
        return self._resolve(self._root, 0)

    def _resolve(self, value: JsonValue, depth: int) -> JsonValue:
        if depth > BODY_LIMITS.depth:
            raise ConfigValueError(f"more than {BODY_LIMITS.depth} objects and arrays inside each other", member="")
        if isinstance(value, list):
            return [self._resolve(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        path = value.get(_REFERENCE)
        if isinstance(path, str):
            found = self._find(path)
            self._check(found, path)
            return found
        return {name: self._resolve(item, depth + 1) for name, item in value.items()}

    def _find(self, path: str) -> JsonValue:
        steps = _PATH_STEP.findall(path[1:])
        if not path.startswith("$") or "".join(dot + name + index for dot, name, index in steps) != path[1:]:
            raise _bad_reference("expected a path from the root", path)
        found = self._root
        for _, name, index in steps:
            if isinstance(found, list) and index and int(index[1:-1]) < len(found):
                found = found[int(index[1:-1])]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise _bad_reference("it leads nowhere", path)
        return found

    def _check(self, found: JsonValue, path: str) -> None:
        """Count what is referred to, so that a short text cannot stand for an endless one."""
        inside = [found]
        while inside:
            value = inside.pop()
            self._values_left -= 1
            if self._values_left < 0:
                raise _bad_reference(f"all together stand for more than {self._values_max} values", path)
            if isinstance(value, dict):
                if _REFERENCE in value:
                    raise _bad_reference("it leads to another one", path)
                inside += value.values()
            elif isinstance(value, list):
                inside += value


def _bad_reference(reason: str, path: str) -> ConfigValueError:
    return ConfigValueError(reason, member=f"{_REFERENCE} {path[:60]}")


def _loads(data: bytes | str, limits: Limits = BODY_LIMITS) -> JsonValue:
    return loads(data, limits=limits, keep_layout=False)
