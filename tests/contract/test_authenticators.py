"""Goal: LakeMQ's own authenticators keep the contract that plugins are held to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from lakemq.broker_core.api.access import Credentials
from lakemq.broker_core.security.authn.certificates import CertificateAuthenticator
from lakemq.broker_core.security.authn.http_callback import HttpAuthenticator
from lakemq.broker_core.security.authn.password_users import FileUsers, PasswordAuthenticator
from lakemq.broker_core.security.authn.passwords import PasswordChecker, password_hash
from lakemq.broker_core.security.authn.tokens import TokenAuthenticator
from lakemq.broker_core.security.authn.users import UserRecord, user_line
from lakemq.broker_core.security.settings import CertificateSettings, HttpSettings, JwtSettings
from lakemq.plugins.amqtt_auth.adapter import AmqttAuthenticator, load
from lakemq.plugins.amqtt_auth.config import AmqttPluginSettings
from lakemq.testing import AuthenticatorContract

SECRET = b"0123456789abcdef0123456789abcdef"
YEAR_2096_S = 4_000_000_000


def shown(username: str | None, password: bytes | None) -> Credentials:
    return Credentials("mqtt", "c1", "10.0.0.1", username, password)


class WithPassword(AuthenticatorContract):
    @pytest.fixture
    def accepted(self) -> Credentials:
        return shown("ann", b"correct horse")

    @pytest.fixture
    def refused(self) -> Sequence[Credentials]:
        return [shown("ann", b"battery staple"), shown("ann", b""), shown("ann", None)]


class TestPasswordFile(WithPassword):
    @pytest.fixture
    def authenticator(self, tmp_path: Path) -> PasswordAuthenticator:
        file = tmp_path / "users"
        ann = UserRecord("ann", password_hash("correct horse"), roles=("auditor", "operator"))
        file.write_text(user_line(ann) + "\n")
        return PasswordAuthenticator(FileUsers(str(file)), PasswordChecker(1, 10))

    @pytest.fixture
    def foreign(self) -> Sequence[Credentials]:
        return [shown(None, None), shown("bob", b"correct horse")]


class TestHttpCallback(WithPassword):
    @pytest.fixture
    async def authenticator(self) -> AsyncIterator[HttpAuthenticator]:
        async def judge(request: web.Request) -> web.Response:
            asked = json.loads(await request.text())
            right = (asked["username"], asked["password"]) == ("ann", "correct horse")
            return web.json_response({"result": "allow" if right else "deny"})

        app = web.Application()
        app.router.add_post("/auth", judge)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/auth"
        made = HttpAuthenticator(HttpSettings(kind="http", url=url), lambda: 0, {})
        yield made
        await made.close()
        await runner.cleanup()


class TestToken(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self, tmp_path: Path) -> TokenAuthenticator:
        (tmp_path / "secret").write_bytes(SECRET)
        made = JwtSettings(
            kind="jwt", secret_file=str(tmp_path / "secret"), algorithms=["HS256"], issuer="acme"
        )
        return TokenAuthenticator(made, lambda: 0)

    @pytest.fixture
    def accepted(self) -> Credentials:
        return self.with_token(SECRET)

    @pytest.fixture
    def refused(self) -> Sequence[Credentials]:
        return [self.with_token(SECRET[::-1]), self.with_token(SECRET, algorithm="HS384")]

    @pytest.fixture
    def foreign(self) -> Sequence[Credentials]:
        return [shown("ann", b"password"), self.with_token(SECRET, issuer="somebody else")]

    @staticmethod
    def with_token(secret: bytes, *, issuer: str = "acme", algorithm: str = "HS256") -> Credentials:
        claims = {"sub": "ann", "exp": YEAR_2096_S, "iss": issuer}
        with_key = secret * 2  # PyJWT warns of keys shorter than the hash
        key = secret if algorithm == "HS256" else with_key
        return Credentials("native", "c1", "h", token=jwt.encode(claims, key, algorithm))


class TestCertificate(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self) -> CertificateAuthenticator:
        return CertificateAuthenticator(CertificateSettings(kind="certificate"))

    @pytest.fixture
    def accepted(self) -> Credentials:
        return Credentials("mqtt", "c1", "h", certificate_subject="CN=device-1,O=Acme")

    @pytest.fixture
    def refused(self) -> Sequence[Credentials]:
        return [Credentials("mqtt", "c1", "h", certificate_subject="O=Acme")]


@pytest.mark.slow  # amqtt checks each password with Argon2, in the event loop
class TestAmqttPlugins(WithPassword):
    @pytest.fixture
    def authenticator(self, tmp_path: Path) -> AmqttAuthenticator:
        file = tmp_path / "passwd"
        file.write_text(f"ann:{PasswordHash((Argon2Hasher(),)).hash('correct horse')}\n")
        path = "amqtt.plugins.authentication.FileAuthPlugin"
        plugin = AmqttPluginSettings(path=path, config={"password_file": str(file)})
        return AmqttAuthenticator(load([plugin]).authenticators)
