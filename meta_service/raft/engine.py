"""pysyncobj, guarded: the exact version, loaded once more as a private copy with safe parts.

As shipped, pysyncobj 0.3.17 loses acknowledged entries and unpickles what peers send. What is
unsound is replaced: parts that are module globals (journal, codec, clock, random, poller) here,
methods in `Elections`, `Replication` and `RaftNode`, which override pysyncobj's private methods by
their mangled names. That is only safe for the very source it was written against, hence the hashes.
pysyncobj's own modules stay as they are: copies that others have imported are not changed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import operator
import random
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from lakemq.meta_service.api.errors import StartupFailed

VERSION: Final = "0.3.17"
SOURCE_SHA256: Final = {
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
}
"""Of the modules whose insides this package relies on."""


_ENCRYPTOR: Final = "pysyncobj.encryptor"


class Clock:
    """Monotonic seconds. The simulation puts its own `source` in."""

    def __init__(self) -> None:
        self.source: Callable[[], float] = time.monotonic

    def __call__(self) -> float:
        return self.source()


class RandomSource:
    """Election timeouts. The simulation puts its own seeded `source` in."""

    def __init__(self) -> None:
        self.source = random.Random(random.SystemRandom().getrandbits(64))

    def random(self) -> float:
        """A float from 0 up to 1, drawn from `source`."""
        return self.source.random()


CLOCK: Final = Clock()
RNG: Final = RandomSource()


class NoPickle:
    """Stands where pysyncobj keeps `pickle`. Everything that reached it is overridden."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"pysyncobj reached pickle.{name}; nothing is ever pickled here")


class NoSerializer:
    """Stands where pysyncobj keeps its dump writer; snapshots are taken by `snapshot.py`."""

    def __init__(self, *_: object) -> None:
        pass


def _refuse_other_sources(package: Path) -> None:
    found = importlib.metadata.version("pysyncobj")
    if found != VERSION:
        raise StartupFailed(f"pysyncobj {found} is installed, but this needs exactly {VERSION}")
    for name, expected in SOURCE_SHA256.items():
        actual = hashlib.sha256((package / name).read_bytes()).hexdigest()
        if actual != expected:
            raise StartupFailed(
                f"pysyncobj {found} is not the known one: {name} has SHA-256 {actual[:16]}..., "
                f"expected {expected[:16]}..."
            )


@contextmanager
def _private_package(folder: Path) -> Iterator[None]:
    """Meanwhile `import pysyncobj` finds a package of the modules that are asked for alone. Its own
    `__init__` would load all of them, and `cryptography` for passwords, which are not used here."""
    ours = {"pysyncobj": ModuleType("pysyncobj"), _ENCRYPTOR: ModuleType(_ENCRYPTOR)}
    vars(ours["pysyncobj"])["__path__"] = [str(folder)]
    vars(ours[_ENCRYPTOR]).update(HAS_CRYPTO=False, getEncryptor=None)
    kept = _take_out()
    sys.modules.update(ours)
    try:
        yield
    finally:
        _take_out()
        sys.modules.update(kept)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "pysyncobj"]
    return {name: sys.modules.pop(name) for name in names}


def load_engine() -> ModuleType:
    """A private copy of `pysyncobj.syncobj` with safe parts. Raises StartupFailed."""
    package_spec = importlib.util.find_spec("pysyncobj")
    if package_spec is None or package_spec.origin is None:
        raise StartupFailed(f"pysyncobj {VERSION} is not installed")
    package = Path(package_spec.origin).parent
    _refuse_other_sources(package)
    spec = importlib.util.spec_from_file_location("pysyncobj.lakemq", package / "syncobj.py")
    # Not in `sys.modules`, nor is what it imports: other users of pysyncobj keep an unchanged copy.
    assert spec is not None and spec.loader is not None
    engine = importlib.util.module_from_spec(spec)
    inet_ntop = socket.inet_ntop
    with _private_package(package):
        spec.loader.exec_module(engine)
    # pysyncobj puts a function for Windows in its place, on every system and for all who call it
    socket.inet_ntop = inet_ntop
    parts: dict[str, Any] = {
        "pickle": NoPickle(),
        "Serializer": NoSerializer,
        "createJournal": lambda log: log,
        "createPoller": lambda poller: poller,
        "monotonicTime": CLOCK,
        "random": RNG,
    }
    for name, part in parts.items():
        # `setattr` alone would add a name that nothing reads, and the unsafe part would stay in
        # use.
        if not hasattr(engine, name):
            raise StartupFailed(f"pysyncobj has no {name} to replace")
        setattr(engine, name, part)
    return engine


_engine: Final = load_engine()

SyncObj: Any = _engine.SyncObj
Transport: Any = _engine.Transport
_Node: Any = _engine.Node
SyncObjConf: Final = _engine.SyncObjConf
FailReason: Final = _engine.FAIL_REASON
FOLLOWER: Final[int] = _engine._RAFT_STATE.FOLLOWER
CANDIDATE: Final[int] = _engine._RAFT_STATE.CANDIDATE
LEADER: Final[int] = _engine._RAFT_STATE.LEADER
REGULAR: Final[int] = _engine._COMMAND_TYPE.REGULAR
NO_OP: Final[int] = _engine._COMMAND_TYPE.NO_OP
MEMBERSHIP: Final[int] = _engine._COMMAND_TYPE.MEMBERSHIP


class Peer(_Node):  # type: ignore[misc] # pysyncobj has no types
    """A member as pysyncobj names it. Its hash is the same in every process, so that sets of
    members have one order and a simulation can be repeated. Asked for with every entry, so it is
    computed once."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._hash = zlib.crc32(name.encode())

    def __hash__(self) -> int:
        return self._hash


@functools.lru_cache(maxsize=256)
def peer_named(name: str) -> Peer:
    """The same object for the same name: to look it up in a dict compares nothing then."""
    return Peer(name)


T = TypeVar("T")


if TYPE_CHECKING:

    class Private(Generic[T]):
        """A field of type `T` that pysyncobj keeps under a mangled private name."""

        def __init__(self, name: str) -> None: ...
        @overload
        def __get__(self, owner: None, kind: type) -> Private[T]: ...
        @overload
        def __get__(self, owner: object, kind: type) -> T: ...
        def __get__(self, owner: object | None, kind: type) -> T | Private[T]: ...
        def __set__(self, owner: object, value: T) -> None: ...

else:

    class Private(property, Generic[T]):
        """A private field of SyncObj under a plain name. Read without a step of Python's own: a
        tick reads dozens."""

        def __init__(self, name: str) -> None:
            private = "_SyncObj__" + name
            super().__init__(
                operator.attrgetter(private), lambda owner, value: setattr(owner, private, value)
            )
