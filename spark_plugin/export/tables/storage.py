"""Object stores for tables: one set of options for all libraries that reach them.

Options have the names of the Rust crate `object_store`, as `plugins.journal.tiering_options` has
them (`endpoint`, `region`, `access_key_id`, ...); S3's are looked for in variables (`AWS_...`) too.
Azure's are `account_name`, `account_key`, `endpoint`.
delta-rs and obstore take them as they are; pyarrow and pyiceberg have names of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakemq.spark_plugin.errors import MissingDependency, TableError

if TYPE_CHECKING:
    from pyarrow import fs

_S3_SCHEMES: Final = ("s3", "s3a")
_AZURE_SCHEMES: Final = ("abfs", "abfss", "az", "azure")
_AZURE_VARIABLES: Final = {
    "endpoint": ("AZURE_STORAGE_ENDPOINT",),
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY",),
}
_VARIABLES: Final = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
_PYARROW: Final = {
    "region": "region",
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
}
_PYICEBERG: Final = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


def is_s3(uri: str) -> bool:
    """Whether the URI names something in a bucket of S3, or of what speaks its protocol."""
    return urlsplit(uri).scheme in _S3_SCHEMES


def s3_options(
    storage: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The options, and what variables say of those that were not given."""
    found = _from_variables(_VARIABLES, environment)
    # The crate knows each option under its bare name, and with this prefix.
    given = {name.lower().removeprefix("aws_"): value for name, value in storage.items()}
    given = {"endpoint" if name == "endpoint_url" else name: each for name, each in given.items()}
    if "access_key_id" in given:  # a token belongs to its own key
        found.pop("session_token", None)
    return {**found, **given}


def _from_variables(
    variables: Mapping[str, tuple[str, ...]], environment: Mapping[str, str]
) -> dict[str, str]:
    return {
        name: environment[variable]
        for name, each in variables.items()
        for variable in reversed(each)
        if environment.get(variable)
    }


def is_azure(uri: str) -> bool:
    """Whether the URI names something in a container of Azure Blob Storage."""
    return urlsplit(uri).scheme in _AZURE_SCHEMES


def azure_options(
    uri: str, storage: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """As `s3_options`; the account is also in `abfss://container@account.dfs...`."""
    found = _from_variables(_AZURE_VARIABLES, environment)
    container, at, host = urlsplit(uri).netloc.partition("@")
    if at and container:
        found["account_name"] = host.partition(".")[0]
    given = {
        name.lower().removeprefix("azure_").removeprefix("storage_"): value
        for name, value in storage.items()
    }
    return {**found, **given}


def file_system(uri: str, storage: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """pyarrow's file system of a URI, and the path in it. ArrowInvalid, ValueError: it is no URI;
    ArrowException: there is no such store."""
    from pyarrow import fs

    if is_azure(uri):
        options = azure_options(uri, storage)
        if "account_name" in options and "account_key" in options:
            return _azure(options), path_in_bucket(uri)
    options = s3_options(storage) if is_s3(uri) else {}
    if not options.get("endpoint") and not options.get("region"):
        # The bucket tells its region.
        return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    arguments: dict[str, Any] = {
        _PYARROW[name]: value for name, value in options.items() if name in _PYARROW
    }
    if endpoint := options.get("endpoint"):
        scheme, _, host = endpoint.rpartition("://")
        arguments |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    return fs.S3FileSystem(**arguments), path_in_bucket(uri)


def _azure(options: Mapping[str, str]) -> fs.FileSystem:
    try:
        from pyarrow.fs import AzureFileSystem
    except ImportError:
        raise MissingDependency("this pyarrow was built without Azure; take a newer one") from None
    arguments = {}
    if endpoint := options.get("endpoint"):  # `http://host:port/account` of an emulator
        scheme, _, rest = endpoint.rpartition("://")
        for kind in ("blob", "dfs"):
            arguments[f"{kind}_storage_authority"] = rest.partition("/")[0]
            arguments[f"{kind}_storage_scheme"] = scheme or "https"
    return AzureFileSystem(options["account_name"], account_key=options["account_key"], **arguments)


def path_in_bucket(uri: str) -> str:
    """`bucket/key` of `s3://bucket/key` or `abfss://bucket@account/key`, as pyarrow has it."""
    bucket, slash, key = uri.partition("://")[2].strip("/").partition("/")
    if is_azure(uri):
        bucket = bucket.partition("@")[0]
    return f"{bucket}{slash}{key}"


def delta_options(uri: str, storage: Mapping[str, str]) -> dict[str, str] | None:
    """For delta-rs, which looks at variables by itself."""
    options = dict(storage)
    known = s3_options(storage) if is_s3(uri) else azure_options(uri, storage)
    if (is_s3(uri) or is_azure(uri)) and known.get("endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options or None


def iceberg_properties(catalog: Mapping[str, str], storage: Mapping[str, str]) -> dict[str, str]:
    """Properties of the catalog, with those of the store that it does not have itself."""
    options = s3_options(storage)
    ours = {name: options[own] for own, name in _PYICEBERG.items() if own in options}
    return {**ours, **catalog}


def create_object(uri: str, storage: Mapping[str, str], name: str, data: bytes) -> None:
    """Create an object that appears whole; FileExistsError if it is there already. TableError: the
    store can't be reached, or can't do that."""
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
        from obstore.store import from_url
    except ImportError:
        raise MissingDependency(
            "plain Parquet on an object store needs obstore: pip install 'lakemq[spark,tiering]'"
        ) from None
    options = s3_options(storage) if is_s3(uri) else dict(storage)
    client: Any = {"allow_http": True} if options.get("endpoint", "").startswith("http:") else None
    try:
        store: Any = from_url(uri, config=options, client_options=client)  # type: ignore[call-overload]
        obstore.put(store, name, data, mode="create")
    except (AlreadyExistsError, FileExistsError):
        raise FileExistsError(name) from None
    except (BaseError, OSError, ValueError) as error:
        raise TableError(f"{uri}/{name}: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """What a library says of a store, in one line of bounded length."""
    return " ".join(str(error).split())[:400] or type(error).__name__


_LIBRARIES: Final = ("pyiceberg", "sqlalchemy", "botocore", "requests", "urllib3", "deltalake")


def is_of_store(error: BaseException) -> bool:
    """Whether a library says that a store or catalog could not do what it was asked for: a reason
    outside of this program."""
    library = type(error).__module__.partition(".")[0]
    # pyarrow has no errors of its own for stores: they are OSErrors with this text.
    told = isinstance(error, OSError) and ("AWS Error" in str(error) or "Azure Error" in str(error))
    return told or library in _LIBRARIES
