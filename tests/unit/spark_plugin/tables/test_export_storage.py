"""Goal: one set of options reaches a store by every library; secrets do not travel with tasks."""

from __future__ import annotations

import pytest

from lakemq.spark_plugin.cli.options import TableOptions, pairs
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.tables.storage import (
    azure_options,
    delta_options,
    iceberg_properties,
    is_of_store,
    path_in_bucket,
    s3_options,
)

ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2",
    "AWS_DEFAULT_REGION": "eu-north-1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_SESSION_TOKEN": "t",
}  # fmt: skip


def test_options_come_before_variables() -> None:
    found = s3_options({}, ENVIRONMENT)
    assert found == {
        "endpoint": "http://s3:2", "region": "eu-north-1", "access_key_id": "k",
        "secret_access_key": "s", "session_token": "t",
    }  # fmt: skip
    given = {"AWS_ENDPOINT_URL": "https://own", "aws_access_key_id": "K", "secret_access_key": "S"}
    found = s3_options(given, ENVIRONMENT)
    assert found["endpoint"] == "https://own" and found["region"] == "eu-north-1"
    assert (found["access_key_id"], found["secret_access_key"]) == ("K", "S")
    assert "session_token" not in found, "the token belongs to the other key"


def test_each_library_gets_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    options = {"endpoint": "http://s3:2", "region": "r", "access_key_id": "k"}
    assert delta_options("s3://b/t", options) == {**options, "allow_http": "true"}
    assert delta_options("s3://b/t", {}) is None and delta_options("/data/t", {}) is None
    assert delta_options("gs://b/t", {"service_account": "f"}) == {"service_account": "f"}
    made = iceberg_properties({"s3.region": "own", "uri": "u"}, options)
    assert made == {
        "s3.endpoint": "http://s3:2", "s3.region": "own", "s3.access-key-id": "k", "uri": "u"
    }  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:1")
    assert delta_options("s3://b/t", {}) == {"allow_http": "true"}
    assert iceberg_properties({}, {})["s3.endpoint"] == "http://all:1"
    assert path_in_bucket("s3://b/a/t/") == "b/a/t"


def test_azure_has_its_account_in_the_uri_or_beside_it() -> None:
    uri = "abfss://lake@acme.dfs.core.windows.net/a/t"
    variables = {"AZURE_STORAGE_ACCOUNT_NAME": "other", "AZURE_STORAGE_ACCOUNT_KEY": "k"}
    assert azure_options(uri, {}, variables) == {"account_name": "acme", "account_key": "k"}
    assert azure_options("az://lake/t", {}, variables)["account_name"] == "other"
    given = {"azure_storage_account_key": "own", "endpoint": "http://e:1/acme"}
    assert azure_options(uri, given, variables) == {
        "account_name": "acme", "account_key": "own", "endpoint": "http://e:1/acme"
    }  # fmt: skip
    assert delta_options(uri, given) == {**given, "allow_http": "true"}
    assert path_in_bucket(uri) == path_in_bucket("az://lake/a/t") == "lake/a/t"
    assert path_in_bucket("s3://b@c/t") == "b@c/t"


def test_pairs_of_the_command_line() -> None:
    assert pairs("--x", ["a=1", "b=", "c=d=e"]) == {"a": "1", "b": "", "c": "d=e"}
    for wrong in (["secret"], ["=v"], ["a=1", "a=2"]):
        with pytest.raises(OptionError) as caught:
            pairs("--storage-option", wrong)
        assert "1" not in str(caught.value)
    given = TableOptions(
        to="iceberg", table="a.b", catalog_uri="http://c", catalog_property=["type=glue", "w=x"]
    )
    assert given.target().catalog == {
        "name": "default", "uri": "http://c", "type": "glue", "w": "x"
    }  # fmt: skip
    made = TableOptions(to="delta", path="s3://b/t", storage_option=["secret_access_key=hush"])
    assert made.target().storage == {"secret_access_key": "hush"}
    assert "hush" not in repr(made.target())
    with pytest.raises(OptionError, match="are for --to iceberg"):
        TableOptions(to="delta", path="t", catalog_property=["a=b"]).target()


def test_what_a_store_says_is_not_a_fault_of_ours() -> None:
    assert is_of_store(OSError("When reading: AWS Error NETWORK_CONNECTION: no"))
    assert not is_of_store(OSError("no space left")) and not is_of_store(KeyError("x"))
