"""The registry over the MetaService, and the check of values on their way in.

Values are checked on the event loop, batch by batch, with schemas that are held ready: the catalog
is followed, so a schema is there before, or soon after, its first value.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import (
    IncompatibleSchema,
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
    SchemaMismatch,
    Unavailable,
    UnknownSchema,
)
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.schemas.formats import (
    AvroFormat,
    Format,
    JsonFormat,
    ProtobufFormat,
    open_schema,
)
from lakemq.broker_core.api.schemas.json_validation import STEPS_MAX, TooManySteps
from lakemq.broker_core.api.schemas.protobuf_source import normal, parsed_descriptor, source_of
from lakemq.broker_core.api.schemas.rules import (
    avro_problems,
    directions,
    json_problems,
    protobuf_problems,
)
from lakemq.broker_core.api.schemas.types import SchemaInfo, SubjectInfo, unframed
from lakemq.broker_core.api.types import TopicInfo
from lakemq.meta_service.api import errors as meta_errors
from lakemq.meta_service.api.schemas import COMPATIBILITIES, Schema, Subject
from lakemq.meta_service.api.types import MetaClient

_log = logging.getLogger(__name__)
_TRIES: Final = 5
_ID_MAX: Final = 2**32 - 1
"""The frame of a value has room for no more."""
_RETRY_FIRST_MS: Final = 1_000
_RETRY_MAX_MS: Final = 5_000
_rng: Final = random.Random()
_THREADS: Final = 2
_OPENED_MAX: Final = 16
"""Schemas that were asked about last: who looks for one registers it next."""
_T = TypeVar("_T")


class SchemaRegistry:
    """Implements the `Schemas` port; `check_values` is for the road of records."""

    def __init__(self, meta: MetaClient) -> None:
        self._meta = meta
        self._formats: dict[int, Format] = {}
        self._digests: dict[int, bytes] = {}
        """Of schemas that others were compared with."""
        self._opened: dict[tuple[str, str], Format] = {}
        """(type, text) -> schema, for some that were opened last."""
        self._by_subject: dict[str, tuple[int, ...]] = {}
        """Subject -> ids of its versions that are ready for use, oldest first."""
        self._task: asyncio.Task[None] | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "schemas")
        """Opens schemas: a child process for Protobuf, some time for any."""

    async def start(self) -> None:
        """Hold ready all schemas there are, then follow."""
        revision, subjects = await self._asked(self._meta.subjects(), "subjects")
        for subject in subjects:
            await self._take(subject)
        self._task = asyncio.create_task(self._follow(revision + 1))

    async def stop(self) -> None:
        """Stop following and shut the threads; schemas that are being opened are given up."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, partial(work, *arguments)
        )

    async def _follow(self, revision: int) -> None:
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                async for change in self._meta.watch_subjects(revision):
                    backoff.reset()
                    revision = change.revision + 1
                    if change.subject is None:
                        self._by_subject.pop(change.name, None)
                    else:
                        await self._take(change.subject)
            except meta_errors.MetaError as error:
                _log.warning("cannot watch schemas, trying again: %s", error)
            except LakeMQError as error:
                _log.warning("cannot load a schema, trying again: %s", error)
            await asyncio.sleep(backoff.next_s())
            with suppress(LakeMQError):
                revision, subjects = await self._asked(self._meta.subjects(), "subjects")
                for subject in subjects:
                    await self._take(subject)
                revision += 1

    async def _take(self, subject: Subject) -> None:
        ready = []
        for _, schema_id in subject.versions:
            # A schema never changes under its id, so it is opened once and never again.
            if schema_id not in self._formats:
                found = await self._asked(self._meta.schema(schema_id), subject.name)
                if found is None:
                    continue
                try:
                    opened = await self._in_thread(open_schema, found.schema_type, found.text)
                except InvalidRequest as error:
                    _log.warning("schema %d of %s is not used: %s", schema_id, subject.name, error)
                    continue
                self._formats[schema_id] = opened
            ready.append(schema_id)
        # At the end: values are checked against versions whose schemas are all open.
        self._by_subject[subject.name] = tuple(ready)

    # -- values on their way in

    def check_values(
        self, topic: TopicInfo, values: Sequence[bytes | None], steps_max: int | None = None
    ) -> None:
        """Raises SchemaMismatch, naming topic, record and field. Null values always fit."""
        for _, error in self.mismatches(topic, values, steps_max):
            raise error

    def mismatches(
        self, topic: TopicInfo, values: Sequence[bytes | None], steps_max: int | None = None
    ) -> Iterator[tuple[int, SchemaMismatch]]:
        """(index, why) of each value that does not fit. Raises TooManySteps beyond `steps_max`."""
        subject = topic.config.schema
        ids = self._by_subject.get(subject)
        for at, value in enumerate(values):
            if not ids:
                why = f"topic {topic.name} asks for schema {subject!r}, which has none"
                yield at, SchemaMismatch(why)
            elif value is not None:
                try:
                    self._check_value(subject, ids, value, steps_max or STEPS_MAX)
                except TooManySteps:
                    if steps_max is not None:
                        raise
                    why = f"to compare it with the schema takes more than {STEPS_MAX} steps"
                    yield at, SchemaMismatch(f"topic {topic.name}, record {at}: {why}")
                except SchemaMismatch as error:
                    yield at, SchemaMismatch(f"topic {topic.name}, record {at}: {error}")

    def _check_value(
        self, subject: str, ids: tuple[int, ...], value: bytes, steps_max: int
    ) -> None:
        newest = self._formats[ids[-1]]
        if value[:1] != b"\x00" and isinstance(newest, JsonFormat):
            newest.check(value, steps_max)  # plain JSON, as devices send it
            return
        schema_id, payload = unframed(value)
        # A schema of another subject is refused, even if the value would fit it.
        if schema_id not in ids:
            raise SchemaMismatch(f"schema {schema_id} is not a version of {subject}")
        self._formats[schema_id].check(payload, steps_max)

    def check_batch(self, topic: TopicInfo, batch: bytes, steps_max: int | None = None) -> None:
        """`check_values` of a batch whose CRC was checked."""
        if topic.config.schema:
            self.check_values(topic, RecordBatch(batch).values(), steps_max)

    # -- the registry

    async def register(self, subject: str, schema_type: str, text: str) -> SchemaInfo:
        """Register the subject's next version, or find it if the latest one is the same. Raises
        IncompatibleSchema, InvalidRequest."""
        _check_subject(subject)
        for _ in range(_TRIES):
            known = await self._asked(self._meta.subject(subject), subject)
            latest = known.latest_version if known is not None else 0
            newest = await self._version(subject, None)
            if newest is not None and (newest.schema_type, newest.text) == (schema_type, text):
                return _info(newest)
            problems = await self._problems(known, subject, schema_type, text)
            if problems:
                raise IncompatibleSchema("; ".join(problems[:10]))
            try:
                made = await self._meta.register_schema(
                    subject, schema_type, text, expected_version=latest
                )
            except meta_errors.CompareFailed:
                continue  # another node registered one meanwhile: look again
            except meta_errors.MetaError as error:
                raise _translated(error, subject) from None
            await self._use(made)
            return _info(made)
        raise Unavailable(f"subject {subject} changes all the time")

    async def _use(self, made: Schema) -> None:
        """Hold what was registered here ready: its first value comes next, and may come before the
        catalog's change does."""
        self._formats[made.schema_id] = await self._open(made.schema_type, made.text)
        known = await self._asked(self._meta.subject(made.subject), made.subject)
        if known is not None:
            await self._take(known)

    async def check(
        self, subject: str, schema_type: str, text: str, version: int | None = None
    ) -> Sequence[str]:
        """Why the schema could not be the subject's next version; empty: it could. `version`: the
        only one that it is compared with."""
        _check_subject(subject)
        known = await self._asked(self._meta.subject(subject), subject)
        return await self._problems(known, subject, schema_type, text, version)

    async def find(self, subject: str, schema_type: str, text: str) -> SchemaInfo | None:
        """The newest version that is this schema, however either is laid out. Raises
        InvalidRequest, UnknownSchema."""
        versions = (await self.subject(subject)).versions
        wanted = await self._in_thread(_digest, await self._open(schema_type, text))
        for _, schema_id in reversed(versions):
            if await self._digest_of(schema_id) == wanted:
                found = await self._asked(self._meta.schema(schema_id), subject)
                if found is not None:
                    return _info(found)
        return None

    async def _digest_of(self, schema_id: int) -> bytes | None:
        """None: it is gone, or can't be opened. Made once: a schema never changes under its id."""
        if schema_id not in self._digests:
            opened = self._formats.get(schema_id)
            if opened is None:
                found = await self._asked(self._meta.schema(schema_id), str(schema_id))
                if found is None:
                    return None
                try:
                    opened = await self._open(found.schema_type, found.text)
                except InvalidRequest:  # of an older version, which took more
                    return None
            self._digests[schema_id] = await self._in_thread(_digest, opened)
        return self._digests[schema_id]

    async def _open(self, schema_type: str, text: str) -> Format:
        """Raises InvalidRequest."""
        key = schema_type, text
        if key not in self._opened:
            opened = await self._in_thread(open_schema, schema_type, text)
            self._opened[key] = opened
            while len(self._opened) > _OPENED_MAX:
                del self._opened[next(iter(self._opened))]
            return opened
        return self._opened[key]

    async def protobuf_source(self, descriptor: bytes) -> str:
        """The text of a serialized FileDescriptorProto. Raises InvalidRequest."""
        file = parsed_descriptor(descriptor)
        text = await self._in_thread(source_of, file)
        made = await self._open("protobuf", text)
        assert isinstance(made, ProtobufFormat)
        if await self._in_thread(normal, made.file) != await self._in_thread(normal, file):
            raise InvalidRequest(
                "schema: the descriptor has parts that would be lost, such as options of other "
                "files: send the source"
            )
        return text

    async def protobuf_descriptor(self, schema: SchemaInfo) -> bytes:
        """The serialized FileDescriptorProto of a Protobuf schema. Raises InvalidRequest."""
        opened = self._formats.get(schema.schema_id)
        opened = opened or await self._open(schema.schema_type, schema.text)
        if not isinstance(opened, ProtobufFormat):
            raise InvalidRequest(f"schema {schema.schema_id} is not Protobuf")
        return opened.file.SerializeToString()

    async def _problems(
        self,
        known: Subject | None,
        subject: str,
        schema_type: str,
        text: str,
        only: int | None = None,
    ) -> list[str]:
        """Raises InvalidRequest when the text is not a schema."""
        new = await self._open(schema_type, text)
        if known is None or not known.versions:
            return []
        rule = known.compatibility or await self._asked(self._meta.default_compatibility(), subject)
        backward, forward, transitive = directions(rule)
        if not backward and not forward:
            return []
        problems: list[str] = []
        compared = known.versions if transitive else known.versions[-1:]
        if only is not None:
            compared = tuple(each for each in known.versions if each[0] == only)
        for version, _ in compared:
            old = await self._version(subject, version)
            if old is not None:
                problems += await self._in_thread(
                    _between, old, schema_type, new, backward, forward
                )
        return problems

    async def get(
        self, *, schema_id: int = 0, subject: str = "", version: int | None = None
    ) -> SchemaInfo:
        """A schema by id, or by subject and version (None: the latest). Raises UnknownSchema."""
        if not 0 <= schema_id <= _ID_MAX:
            raise UnknownSchema(f"schema id {schema_id}: ids are 1 to {_ID_MAX}")
        if schema_id:
            found = await self._asked(self._meta.schema(schema_id), str(schema_id))
        else:
            _check_subject(subject)
            found = await self._version(subject, version)
        if found is None:
            wanted = f"id {schema_id}" if schema_id else f"version {version or 'latest'}"
            raise UnknownSchema(f"schema {subject or ''} {wanted} does not exist")
        return _info(found)

    async def check_subject(self, subject: str) -> None:
        """A topic may ask for this subject's schema: it has a version, or is empty (none is asked
        for). Raises InvalidRequest."""
        if subject and not self._by_subject.get(subject):
            try:
                await self.get(subject=subject)
            except UnknownSchema:
                raise InvalidRequest(
                    f"schema is {subject!r}, a subject without a version; register a schema first"
                ) from None

    async def _version(self, subject: str, version: int | None) -> Schema | None:
        found: Schema | None = await self._asked(
            self._meta.schema_version(subject, version), subject
        )
        return found

    async def subjects(self) -> Sequence[SubjectInfo]:
        """All subjects by name, with the compatibility that counts for each."""
        default = await self._asked(self._meta.default_compatibility(), "subjects")
        _, found = await self._asked(self._meta.subjects(), "subjects")
        return [
            SubjectInfo(each.name, each.compatibility or default, each.versions) for each in found
        ]

    async def subject(self, name: str) -> SubjectInfo:
        """One subject. Raises UnknownSchema."""
        _check_subject(name)
        found = await self._asked(self._meta.subject(name), name)
        if found is None:
            raise UnknownSchema(f"subject {name!r} does not exist")
        rule = found.compatibility or await self.default_compatibility()
        return SubjectInfo(found.name, rule, found.versions)

    async def default_compatibility(self) -> str:
        """The rule of subjects that have none of their own."""
        return str(await self._asked(self._meta.default_compatibility(), "subjects"))

    async def delete(self, subject: str, version: int | None = None) -> None:
        """Delete a version, or with None the whole subject. Raises UnknownSchema."""
        await self._asked(self._meta.delete_schema(subject, version), subject)

    async def set_compatibility(self, subject: str, compatibility: str | None) -> None:
        """Set the rule of a subject, or of the cluster where it is empty; None takes it back."""
        if compatibility is not None and compatibility not in COMPATIBILITIES:
            raise InvalidRequest(
                f"compatibility is {compatibility!r}; it takes {', '.join(COMPATIBILITIES)}"
            )
        await self._asked(self._meta.set_compatibility(subject, compatibility), subject)

    async def _asked(self, call: Any, what: str) -> Any:
        try:
            return await call
        except meta_errors.MetaError as error:
            raise _translated(error, what) from None


def _between(
    old: Schema, schema_type: str, new: Format, backward: bool, forward: bool
) -> list[str]:
    """What stands between two schemas."""
    if old.schema_type != schema_type:
        return [f"version {old.version} is {old.schema_type}, not {schema_type}"]
    before = open_schema(old.schema_type, old.text)
    found: list[str] = []
    if backward:
        found += [f"version {old.version} can't be read: {each}" for each in _why(new, before)]
    if forward:
        found += [f"version {old.version} can't read it: {each}" for each in _why(before, new)]
    return found


def _digest(schema: Format) -> bytes:
    """Of what the schema says, however it is laid out."""
    said: bytes
    if isinstance(schema, ProtobufFormat):
        said = normal(schema.file)
    else:
        found = json.loads(schema.text) if isinstance(schema, AvroFormat) else None
        found = schema.schema if isinstance(schema, JsonFormat) else found
        said = json.dumps(found, sort_keys=True).encode()
    return hashlib.sha256(type(schema).__name__.encode() + b"\0" + said).digest()


def _why(reader: Any, writer: Any) -> Iterator[str]:
    if isinstance(reader, ProtobufFormat):
        return protobuf_problems(reader.file, writer.file)
    if isinstance(reader, AvroFormat):
        return avro_problems(json.loads(reader.text), json.loads(writer.text))
    return json_problems(reader.schema, writer.schema)


def _check_subject(name: str) -> None:
    if not 1 <= len(name.encode()) <= 249 or not name.isprintable():
        raise InvalidRequest(f"subject is {name[:300]!r}; it takes 1 to 249 printable characters")


def _info(schema: Schema) -> SchemaInfo:
    return SchemaInfo(
        schema.subject, schema.version, schema.schema_id, schema.schema_type, schema.text
    )


def _translated(error: meta_errors.MetaError, what: str) -> LakeMQError:
    if isinstance(error, meta_errors.NotFound):
        return UnknownSchema(f"subject or version {what!r} does not exist")
    if isinstance(error, meta_errors.InvalidArgument):
        return InvalidRequest(str(error))
    if not error.definite:
        return OutcomeUnknown(f"{what}: {error}")
    return Unavailable(f"{what}: {error}")
