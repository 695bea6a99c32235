"""Object stores for tiered segments: a folder, or a bucket through obstore. Edge, blocking.

obstore (Rust `object_store` behind one wheel without dependencies) rather than fsspec, whose S3
side needs s3fs, aiobotocore and botocore at pinned versions. The folder goes through the journal's
own file layer instead of obstore, because obstore does not fsync, and a local copy is given up for
what is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.journal.segment.files import NEW_SUFFIX, Files
from lakemq.plugins.journal.segment.manifest import Manifest

_TIMEOUT: Final = "60s"
_RETRIES: Final = 3


class StoreError(Exception):
    """The store could not do it now. Never crosses the journal's door."""


class ObjectMissing(StoreError):
    """The store has no such object."""


class ObjectShort(StoreError):
    """The object ends before what was asked for."""


class ObjectStore(Protocol):
    """Objects by name, `/` between its parts. Every method raises StoreError."""

    url: str
    """What precedes every object's name in its URI, `/` at the end."""

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        """Store an object as a whole, in place of an older one; durable when it returns."""

    def read(self, name: str, position: int, size: int) -> bytes:
        """Exactly that range. ObjectMissing, ObjectShort."""

    def read_all(self, name: str) -> bytes:
        """A small object as a whole. ObjectMissing."""

    def delete(self, name: str) -> None:
        """Nothing happens if there is none."""

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below `prefix`, which ends with `/`."""


class FolderStore:
    """Objects as files below a folder."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self.url = root.as_uri().rstrip("/") + "/"

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        """Store an object as a whole, in place of an older one, synced with the folders above it.
        StoreError."""
        path = self._root / name
        new = path.with_name(path.name + NEW_SUFFIX)
        try:
            self._files.make_folder(path.parent)
            with closing(self._files.create(new)) as handle:
                position = 0
                for chunk in chunks:
                    handle.write_at(position, [chunk])
                    position += len(chunk)
                handle.sync()
            self._files.rename(new, path)
            # Each of them may be new: a name is durable when its folder is synced, and so is that
            # of the folder in the one above.
            folder = path.parent
            while folder.is_relative_to(self._root):
                self._files.sync_folder(folder)
                folder = folder.parent
        except OSError as error:
            raise StoreError(f"{path}: {error}") from None

    def read(self, name: str, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` on. ObjectMissing, ObjectShort, StoreError."""
        path = self._root / name
        try:
            with closing(self._files.open(path)) as handle:
                data = handle.read_at(position, size)
        except FileNotFoundError:
            raise ObjectMissing(f"{path} is missing") from None
        except OSError as error:
            raise StoreError(f"{path}: {error}") from None
        if len(data) != size:
            raise ObjectShort(f"{path}: {len(data)} of {size} bytes at position {position}")
        return data

    def read_all(self, name: str) -> bytes:
        """An object as a whole. ObjectMissing, StoreError."""
        path = self._root / name
        try:
            return self._files.read(path)
        except FileNotFoundError:
            raise ObjectMissing(f"{path} is missing") from None
        except OSError as error:
            raise StoreError(f"{path}: {error}") from None

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if there is none. StoreError."""
        try:
            self._files.remove(self._root / name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self._root / name}: {error}") from None

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below `prefix`, which ends with `/`. StoreError."""
        try:
            return list(self._walk(prefix.rstrip("/")))
        except OSError as error:
            raise StoreError(f"{self._root / prefix}: {error}") from None

    def _walk(self, prefix: str) -> Iterator[str]:
        for name in self._files.names(self._root / prefix):
            try:
                below = list(self._walk(f"{prefix}/{name}"))
            except NotADirectoryError:
                yield f"{prefix}/{name}"
                continue
            yield from below


class BucketStore:
    """Objects in a bucket that obstore can speak to: S3 and what is like it, GCS, Azure."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """ConfigError: obstore is not installed, or does not understand the URL or an option."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise ConfigError(
                f"plugins.journal.tiering_url {url!r} needs the extra lakemq[tiering]"
            ) from None
        self._obstore: Any = obstore
        self.url = url.rstrip("/") + "/"
        client: dict[str, Any] = {"timeout": _TIMEOUT}
        if options.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        try:
            self._store: Any = from_url(
                url, config=dict(options), client_options=client,  # type: ignore[call-overload]
                retry_config={"max_retries": _RETRIES},
            )  # fmt: skip
        except Exception as error:  # obstore has its own tree; whatever it is, it is our config.
            raise ConfigError(f"plugins.journal.tiering_url {url!r}: {error}") from None

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        """Store an object as a whole, in place of an older one. StoreError."""
        with _Translated(self._obstore, name):
            self._obstore.put(self._store, name, chunks)

    def read(self, name: str, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position` on. ObjectMissing, ObjectShort, StoreError."""
        try:
            with _Translated(self._obstore, name):
                data = self._obstore.get_range(self._store, name, start=position, length=size)
        except ObjectMissing:
            raise
        except StoreError:
            self._check_length(name, position + size)
            raise
        if len(data) != size:
            raise ObjectShort(f"{name}: {len(data)} of {size} bytes at position {position}")
        return bytes(data)

    def _check_length(self, name: str, end: int) -> None:
        """Stores differ in how they refuse a range behind an object's end. ObjectShort."""
        with _Translated(self._obstore, name):
            there = self._obstore.head(self._store, name)["size"]
        if there < end:
            raise ObjectShort(f"{name}: {there} bytes, {end} are wanted")

    def read_all(self, name: str) -> bytes:
        """An object as a whole. ObjectMissing, StoreError."""
        with _Translated(self._obstore, name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if there is none. StoreError."""
        try:
            with _Translated(self._obstore, name):
                self._obstore.delete(self._store, name)
        except ObjectMissing:
            return

    def names(self, prefix: str) -> list[str]:
        """Names of all objects below `prefix`, which ends with `/`. StoreError."""
        with _Translated(self._obstore, prefix):
            return [
                found["path"]
                for page in self._obstore.list(self._store, prefix=prefix)
                for found in page
            ]


class _Translated:
    """obstore's errors -> ours."""

    def __init__(self, obstore: Any, name: str) -> None:
        self._exceptions = obstore.exceptions
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> None:
        if isinstance(error, self._exceptions.NotFoundError | FileNotFoundError):
            raise ObjectMissing(f"{self._name} is missing") from None
        if isinstance(error, self._exceptions.BaseError | OSError):
            first_line = str(error).strip().partition("\n")[0]
            raise StoreError(f"{self._name}: {first_line}") from None


def open_store(files: Files, url: str, options: Mapping[str, str]) -> ObjectStore:
    """The store that `plugins.journal.tiering_url` names. ConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderStore(files, Path(unquote(parts.path)))
    if not parts.scheme:
        raise ConfigError(f"plugins.journal.tiering_url {url!r} has no scheme, such as s3://")
    return BucketStore(url, options)


def name_of(store: ObjectStore, uri: str) -> str:
    """Name of the object with that URI. StoreError: it is in another store."""
    if not uri.startswith(store.url):
        raise StoreError(
            f"{uri} is not below {store.url}, where plugins.journal.tiering_url points"
        )
    return uri[len(store.url) :]


def object_name(manifest: Manifest, file_name: str) -> str:
    """Where an object of that partition lies in the store."""
    return f"{manifest.topic_id}/{manifest.partition}/{file_name}"
