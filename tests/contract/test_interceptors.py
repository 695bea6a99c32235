"""Goal: the interceptors of the example plugin and of docs/plugins.md keep the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from lakemq_line.origin import OriginHeader

from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Principal
from lakemq.testing import InterceptorContract


class TestOriginHeader(InterceptorContract):
    @pytest.fixture
    def interceptor(self) -> OriginHeader:
        return OriginHeader()

    @pytest.fixture
    def principal(self) -> Principal:
        return Principal("127.0.0.1:50000", "anonymous", {"protocol": "line"})

    @pytest.fixture
    def samples(self) -> Sequence[Columns]:
        own = encode_headers([("line-client", b"forged")])
        return [Columns([b"1", None], None, [own, b""])]
