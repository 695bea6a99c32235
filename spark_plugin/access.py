"""How a broker is reached besides its address: TLS, who calls, and the store where it keeps sealed
segments. Pure; secrets are not in repr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.tiered_options import Tiered

ACCESS_OPTIONS: Final = (
    "tls",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "tls.serverName",
    "token",
    "username",
    "password",
)


BOOTSTRAP_OPTIONS: Final = ("bootstrap", "kafka.bootstrap.servers")
"""The same, by its name here and in Spark's Kafka connector."""


def bootstrap_of(options: Mapping[str, str]) -> str:
    """Addresses of brokers out of options with lower-case names. OptionError if there are none, or
    if they are given by both names."""
    given = [name for name in BOOTSTRAP_OPTIONS if str(options.get(name, "")).strip()]
    if len(given) > 1:
        raise OptionError(f"give one of {' and '.join(given)}, not both")
    if not given:
        raise OptionError("option bootstrap (host:port of a broker) is missing")
    return ",".join(each.strip() for each in str(options[given[0]]).split(","))


@dataclass(frozen=True)
class Access:
    """The default is plain text without a login."""

    tls: bool = False
    tls_ca: str = ""
    """PEM file of the authorities that may have signed the broker's certificate."""
    tls_cert: str = ""
    """PEM file of this client's certificate chain."""
    tls_key: str = ""
    tls_server_name: str = ""
    """Name in the broker's certificate, where it is not the address."""
    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    tiered: Tiered = Tiered()
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of the object store that an export's tables are in."""

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise OptionError("tls.cert and tls.key come together")
        if self.token and (self.username or self.password):
            raise OptionError("give token, or username and password, not both")
        if bool(self.username) != bool(self.password):
            raise OptionError("username and password come together")

    def to_json(self) -> str:
        """Holds the secrets: only for options whose name says so, which Spark then hides."""
        return json.dumps(asdict(self)) if self != Access() else ""

    @classmethod
    def from_json(cls, text: str) -> Access:
        """What `to_json` encoded."""
        if not text:
            return cls()
        fields = json.loads(text)
        tiered = fields.pop("tiered")
        options = tuple((name, value) for name, value in tiered.pop("options"))
        storage = tuple((name, value) for name, value in fields.pop("storage"))
        return cls(**fields, tiered=Tiered(**tiered, options=options), storage=storage)


def parse_access(options: Mapping[str, str]) -> Access:
    """Options with lower-case names -> how to reach the broker. Any tls option turns TLS on, unless
    `tls` is false."""
    given = {name: str(options.get(name.lower(), "")).strip() for name in ACCESS_OPTIONS}
    files = [name for name in ACCESS_OPTIONS if name.startswith("tls.") and given[name]]
    wish = given["tls"].lower() or ("true" if files else "false")
    if wish not in ("true", "false"):
        raise OptionError(f"option tls is {given['tls']!r}; it takes true or false")
    if wish == "false" and files:
        raise OptionError(f"option {files[0]} is for TLS, and tls is false")
    return Access(
        tls=wish == "true",
        tls_ca=given["tls.ca"],
        tls_cert=given["tls.cert"],
        tls_key=given["tls.key"],
        tls_server_name=given["tls.serverName"],
        token=given["token"],
        username=given["username"],
        password=given["password"],
    )
