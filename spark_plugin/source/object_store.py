"""Reads objects of a store with the credentials of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lakemq.spark_plugin.tiered_options import Tiered, tiered_of

_CLIENT: Final = {"timeout": "60s", "connect_timeout": "5s"}
_RETRY: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}

Read = Callable[[str, int, int], bytes]
"""`read(name, position, size)` -> exactly those bytes. ObjectNotFound, StoreUnavailable."""


class StoreUnavailable(Exception):
    """The store can't be reached, or does not let us read."""


class ObjectNotFound(Exception):
    """The store says that it has no such object."""


def open_objects(url: str, tiered: Tiered) -> Read:
    """Reader of the objects below `url`. Options of `tiered` go before variables of this process,
    `LAKEMQ_TIERED_STORE_...` before those that the store itself looks at, such as `AWS_...`.

    StoreUnavailable: there is no way to such a store from here.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _folder(Path(unquote(parts.path)))
    return _bucket(url, {**dict(tiered_of(os.environ).options), **dict(tiered.options)})


def _folder(root: Path) -> Read:
    def read(name: str, position: int, size: int) -> bytes:
        path = root / name
        try:
            with path.open("rb") as file:
                file.seek(position)
                data = file.read(size)
        except FileNotFoundError:
            raise ObjectNotFound(f"{path} is missing") from None
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}") from None
        return _whole(name, position, size, data)

    return read


def _bucket(url: str, options: Mapping[str, str]) -> Read:
    try:
        import obstore
        from obstore.store import from_url
    except ImportError:
        raise StoreUnavailable(
            "obstore is not installed here: pip install 'lakemq[tiering]'"
        ) from None
    client: dict[str, Any] = dict(_CLIENT)
    if options.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    try:
        store: Any = from_url(
            url,
            config=dict(options),
            client_options=client,
            retry_config=_RETRY,  # type: ignore[call-overload]  # typed for each kind of store
        )
    except Exception as error:  # obstore has its own tree; each means that we have no store.
        raise StoreUnavailable(_first_line(error)) from None

    def read(name: str, position: int, size: int) -> bytes:
        try:
            data = bytes(obstore.get_range(store, name, start=position, length=size))
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            raise ObjectNotFound(f"{url}{name} is missing") from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(_first_line(error)) from None
        return _whole(name, position, size, data)

    return read


def _whole(name: str, position: int, size: int, data: bytes) -> bytes:
    if len(data) != size:
        raise StoreUnavailable(f"{name}: {len(data)} of {size} bytes at position {position}")
    return data


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
