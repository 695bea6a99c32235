"""Keys and values <-> bytes, by what the application names: a function, `json`, `string`, a class
of pydantic's or Protobuf's, the schema registry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time
from typing import TYPE_CHECKING, Any, Final, Self

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, SchemaMismatch
from lakemq.broker_core.api.schemas.types import unframed
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.types import ConsumerRecord, NewRecord

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk.schemas import Schemas

Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]
Serializing = Serialize | str | type[Any]
"""A function; `json`, `string`; a pydantic model or a Protobuf message class. The registry's
`client.schemas.serializer(...)` gives a function, too. None is never serialized: it stays None."""
Deserializing = Deserialize | str | type[Any]
"""As `Serializing`; also `schema`: each value is decoded by the schema that it names."""


class DeserializationError(LakeMQError):
    """A record's key or value is not what the deserializer takes. A consumer stays before it:
    `seek` to `offset` + 1 goes on behind it. That of a queue has it in hand: `queue_record`."""

    code = "DESERIALIZATION"

    def __init__(self, message: str, record: ConsumerRecord) -> None:
        super().__init__(message)
        self.record = record
        """As it is stored: key and value are bytes or None."""
        self.queue_record: Any = None
        """Of a queue: the record to settle, as with `reject`; it comes again if it is not."""

    @property
    def place(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        """Of the record."""
        return self.record.offset


def _json(value: Any) -> bytes:
    text = json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_text
    )
    return text.encode()


def _as_text(value: object) -> str:
    """Times, which tables have and JSON has not: as ISO 8601 writes them."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} is no JSON")


def _of_model(value: Any) -> bytes:
    text: str = value.model_dump_json()
    return text.encode()


def _of_message(value: Any) -> bytes:
    data: bytes = value.SerializeToString()
    return data


_SERIALIZE: Final[dict[str, Serialize]] = {
    "json": _json,
    "string": lambda value: str(value).encode(),
}
_DESERIALIZE: Final[dict[str, Deserialize]] = {"json": json.loads, "string": bytes.decode}


def _serialize(name: str, given: object) -> Serialize:
    """Raises InvalidRequest."""
    if isinstance(given, str) and given in _SERIALIZE:
        return _SERIALIZE[given]
    for method, made in (("model_dump_json", _of_model), ("SerializeToString", _of_message)):
        if isinstance(given, type) and hasattr(given, method):
            return _of_class(given, made)
    if isinstance(given, type) or not callable(given):
        raise InvalidRequest(
            f"{name} is {given!r:.60}; it takes a function, 'json', 'string', a pydantic model or "
            "a Protobuf message class"
        )
    return given


def _of_class(kind: type[Any], made: Serialize) -> Serialize:
    def serialize(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise TypeError(f"it is a {type(value).__name__}, not a {kind.__name__}")
        return made(value)

    return serialize


def _deserialize(name: str, given: Any) -> Deserialize:
    """Raises InvalidRequest."""
    if isinstance(given, str) and given in _DESERIALIZE:
        return _DESERIALIZE[given]
    for method in ("model_validate_json", "FromString"):
        if isinstance(given, type) and hasattr(given, method):
            found: Deserialize = getattr(given, method)
            return found
    if isinstance(given, type) or not callable(given):
        raise InvalidRequest(
            f"{name} is {given!r:.60}; it takes a function, 'json', 'string', 'schema', a pydantic "
            "model or a Protobuf message class"
        )
    checked: Deserialize = given
    return checked


class RecordSerializer:
    """Makes records of what the application works with. Raises InvalidRequest for what is no
    serializer."""

    def __init__(self, key: Serializing | None, value: Serializing | None) -> None:
        self._key = None if key is None else _serialize("key_serializer", key)
        self._value = None if value is None else _serialize("value_serializer", value)

    def record(self, record: NewRecord) -> NewRecord:
        """The same with bytes for key and value. SchemaMismatch: a value that does not fit its
        schema; InvalidRequest: one that the serializer does not take."""
        value, key, headers, timestamp_ms = record
        if self._value is not None and value is not None:
            value = _applied("value_serializer", self._value, value)
        if self._key is not None and key is not None:
            key = _applied("key_serializer", self._key, key)
        return NewRecord(value, key, headers, timestamp_ms)

    @property
    def takes_rows(self) -> bool:
        """Whether rows of a table can be values."""
        return self._value is not None


def _applied(name: str, serialize: Serialize, given: Any) -> bytes:
    try:
        return serialize(given)
    except LakeMQError:
        raise
    except Exception as error:  # it is the application's own
        raise InvalidRequest(f"{name}: {type(error).__name__}: {error}") from error


class RecordDeserializer:
    """Makes of keys and values what the application works with, when a record is handed out."""

    def __init__(
        self, key: Deserializing | None, value: Deserializing | None, schemas: Schemas
    ) -> None:
        self._schemas = schemas
        self._unknown: dict[int, LakeMQError] = {}
        self.asks = "schema" in (key, value)
        """Whether the registry has to be asked for schemas."""
        self._key = None if key is None else self._of("key_deserializer", key)
        self._value = None if value is None else self._of("value_deserializer", value)

    @classmethod
    def given(
        cls, key: Deserializing | None, value: Deserializing | None, schemas: Schemas
    ) -> Self | None:
        """None: keys and values stay as they are stored."""
        return None if key is None and value is None else cls(key, value, schemas)

    def _of(self, name: str, given: Deserializing) -> Deserialize:
        return self._by_schema if given == "schema" else _deserialize(name, given)

    def _by_schema(self, data: bytes) -> Any:
        schema_id, payload = unframed(data)
        if schema_id in self._unknown:
            raise self._unknown[schema_id]
        return self._schemas.formats[schema_id].decode(payload)

    async def prepare(self, records: Sequence[ConsumerRecord]) -> None:
        """Ask the registry for the schemas that these records name and that are not known yet."""
        for record in records:
            named = ((self._key, record.key), (self._value, record.value))
            for deserialize, cell in named:
                if deserialize == self._by_schema and cell is not None:
                    await self._ask(cell)

    async def _ask(self, cell: bytes) -> None:
        try:
            schema_id, _ = unframed(cell)
        except SchemaMismatch:  # told when the record's turn comes
            return
        if schema_id in self._schemas.formats or schema_id in self._unknown:
            return
        try:
            await self._schemas.format_of(schema_id)
        except LakeMQError as error:
            if error.retriable:
                raise
            self._unknown[schema_id] = error

    def record(self, record: ConsumerRecord) -> ConsumerRecord:
        """The same with what was made of key and value. Raises DeserializationError."""
        key, value = record.key, record.value
        try:
            part = "key"
            if self._key is not None and key is not None:
                key = self._key(key)
            part = "value"
            if self._value is not None and value is not None:
                value = self._value(value)
        except Exception as error:  # of the application's own function, or of its libraries
            kind = "" if isinstance(error, LakeMQError) else f"{type(error).__name__}: "
            raise DeserializationError(
                f"topic {record.topic} partition {record.partition} offset {record.offset}: its "
                f"{part} is not what the deserializer takes: {kind}{str(error):.300}",
                record,
            ) from error
        return record._replace(key=key, value=value)


class Deserialized(Iterator[ConsumerRecord]):
    """Records, each made when it is asked for. One that can't be made is asked for again and
    again: nothing is left out unseen."""

    def __init__(self, records: Sequence[ConsumerRecord], made: RecordDeserializer) -> None:
        self._records, self._made = records, made
        self._at = 0

    async def prepare(self) -> None:
        """Ask for what making them needs."""
        if self._made.asks:
            await self._made.prepare(self._records)

    def __length_hint__(self) -> int:
        return len(self._records) - self._at

    def __next__(self) -> ConsumerRecord:
        if self._at == len(self._records):
            raise StopIteration
        record = self._made.record(self._records[self._at])
        self._at += 1
        return record
