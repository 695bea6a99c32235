"""Goal: requests hold the wanted records, bounded in number and size; answers mean what HTTP
says."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns
from lakemq.plugins.webhook.config import HookSettings, WantedSettings, WebhookSettings
from lakemq.plugins.webhook.payload import (
    Row,
    Verdict,
    posts_of,
    retry_after_s,
    rows_of,
    secret_of,
    signature_of,
    verdict_of,
)
from lakemq.plugins.webhook.sending import Counters, Sender


def batch(*keys: bytes | None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> RecordBatch:
    values: list[bytes | None] = [b"v%d" % n for n in range(len(keys))]
    return RecordBatch(
        encode(Columns(values, list(keys), [encode_headers(headers)] * len(keys)), now_ms=5)
    )


def picked(made: RecordBatch, start: int = 0, **wanted: object) -> list[int]:
    return [row.offset for row in rows_of([made], start, WantedSettings.model_validate(wanted))]


def test_which_records_are_wanted() -> None:
    made = batch(b"a/b", b"a/b/c", None, b"\xff", b"", headers=(("h", b"1"), ("h", b"2")))
    assert picked(made) == [0, 1, 2, 3, 4] and picked(made, 3) == [3, 4]
    assert picked(made, key="a/b") == [0]
    assert picked(made, key="") == [4]
    assert picked(made, key_prefix="a/") == [0, 1]
    assert picked(made, key_filter="a/#") == [0, 1] and picked(made, key_filter="+/b") == [0]
    assert picked(made, headers={"h": "2"}) == [0, 1, 2, 3, 4]
    assert picked(made, headers={"h": "3"}) == [] and picked(made, headers={"i": "2"}) == []
    assert picked(made, key_prefix="a/", key_filter="#", headers={"h": "1"}, key="a/b/c") == [1]


def test_requests_are_cut_by_number_and_size() -> None:
    rows = [Row(n, 0, None, b"x" * size, ()) for n, size in enumerate((4, 4, 4, 50, 1, 1, 1))]
    posts = list(posts_of("t", 2, "hook", rows, records_max=3, bytes_max=10))
    assert [post.request_id for post in posts] == ["t/2/0-1", "t/2/2-2", "t/2/3-3", "t/2/4-6"]
    assert [post.next_offset for post in posts] == [2, 3, 4, 7]
    assert [post.records for post in posts] == [2, 1, 1, 3]
    body = json.loads(posts[0].body)
    assert (body["webhook"], body["topic"], body["partition"]) == ("hook", "t", 2)
    assert [row["offset"] for row in body["records"]] == [0, 1]
    assert list(posts_of("t", 0, "hook", [], 3, 10)) == []


def test_what_answers_mean() -> None:
    taken = [status for status in range(100, 600) if verdict_of(status) is Verdict.TAKEN]
    assert taken == list(range(200, 300))
    for status in (301, 408, 425, 429, 500, 503):
        assert verdict_of(status) is Verdict.FAILED
    assert verdict_of(400) is verdict_of(410) is Verdict.REFUSED
    assert retry_after_s("7", 60) == 7 and retry_after_s("7000", 60) == 60
    for odd in (None, "", "-1", "Fri, 31 Dec 1999 23:59:59 GMT", "9" * 400, "٣"):
        assert retry_after_s(odd, 60) == 0


def test_signatures_are_those_of_standard_webhooks() -> None:
    """The example of the specification's reference libraries."""
    secret = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature_of(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert secret_of("text") == b"text"
    with pytest.raises(ValueError):
        secret_of("whsec_no base64!")


async def test_missing_secrets_are_told() -> None:
    for more, said in (
        ({"secret_env": "S"}, "environment variable S is not set"),
        ({"headers": {"A": "${T}"}}, "environment variable T is not set"),
        ({"secret_env": "EMPTY"}, "EMPTY holds no secret"),
        ({"secret_env": "ODD"}, "ODD holds no secret"),
    ):
        made = HookSettings.model_validate({"name": "a", "topic": "t", "url": "https://a/", **more})
        with pytest.raises(ConfigError, match=f"webhook: a: .*{said}"):
            Sender(made, Counters(), {"EMPTY": "", "ODD": "whsec_?"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://a/"},
        {"url": "http:///x"},
        {"topic": "__audit"},
        {"name": "a b"},
        {"wanted": {"key_filter": "a/#/b"}},
        {"retry_min_ms": 100, "retry_max_ms": 50},
    ],
)
def test_settings_that_do_not_fit(wrong: dict[str, object]) -> None:
    right = {"name": "a", "topic": "t", "url": "https://a/"}
    HookSettings.model_validate(right)
    with pytest.raises(ValidationError):
        HookSettings.model_validate({**right, **wrong})
    with pytest.raises(ValidationError, match="several webhooks are named a"):
        WebhookSettings.model_validate({"hooks": [right, right]})
