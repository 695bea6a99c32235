"""Section `[security]` of the TOML file."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from lakemq.broker_core.api.access import Rule
from lakemq.broker_core.api.hosts import is_protected
from lakemq.broker_core.api.settings import Reloadable, Section, Unlimited
from lakemq.broker_core.security.authn.attempts import AttemptRules
from lakemq.broker_core.security.authz.rules import check_rule
from lakemq.broker_core.security.quotas import Limits
from lakemq.meta_service.api.auth import canonical_kind

Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip


_SAFE: Final[tuple[Algorithm, ...]] = ("RS256", "PS256", "ES256", "EdDSA")


class CertificateSettings(Section):
    """Who showed a verified client certificate is the user that it names."""

    kind: Literal["certificate"]
    """`certificate`."""
    user: str = "{CN}"
    """The user's name, made of parts of the subject (`{CN}`, `{O}`, `{OU}`, ...), of its other
    names (`{DNS}`, `{URI}`, `{email}`, the first of the kind), or `{subject}`, all of it."""
    roles: list[str] = Field(default_factory=list)
    """Roles, made likewise; one whose parts the certificate does not have is left out."""


class PasswordFileSettings(Section):
    """Users and passwords in a file; `lakemq user --file` writes it."""

    kind: Literal["password_file"]
    """`password_file`."""
    file: str = Field(min_length=1)
    """The file. It is read again when it changes."""


class UsersSettings(Section):
    """Users that the MetaService keeps for all nodes; `lakemq user` manages them. As long as there
    are none, names and passwords mean nothing to it."""

    kind: Literal["users"]
    """`users`."""


class JwtSettings(Section):
    """JSON Web Tokens, as a bearer token or in place of a password."""

    kind: Literal["jwt"]
    """`jwt`."""
    key_file: str = ""
    """File with the issuer's public key (PEM), for RS, PS, ES and EdDSA."""
    secret_file: str = ""
    """File with the secret that is shared with the issuer, for HS; its bytes without a last line
    break."""
    jwks_file: str = ""
    """File with a JSON Web Key Set. All three are read again when they change."""
    jwks_url: str = ""
    """Where the issuer serves its JSON Web Key Set: https, or http on this machine."""
    discovery: bool = False
    """Whether that URL is asked of the issuer (OpenID Connect Discovery), whose URL is `issuer`."""
    refresh_ms: int = Field(default=600_000, ge=1_000)
    """How often keys are fetched from a URL (ms), besides when a token names a key that is not
    known."""
    timeout_ms: int = Field(default=5_000, ge=10, le=60_000)
    """How long the issuer's answer may take (ms)."""
    algorithms: list[Algorithm] = Field(default_factory=lambda: [*_SAFE])
    """What tokens may be signed with; each key takes only what fits its own kind."""
    issuer: str = ""
    """What `iss` must be; empty: anything."""
    audience: str = ""
    """What `aud` must be or hold; empty: tokens that name an audience are refused."""
    leeway_ms: int = Field(default=0, ge=0, le=300_000)
    """How far clocks may differ (ms)."""
    user_claim: str = "sub"
    """Claim that names the user."""
    roles_claim: str = "roles"
    """Claim with the roles: a list, or a text of names with blanks between them."""
    rules_claim: str = "lakemq_rules"
    """Claim with rules of its own: a list of tables like `[[security.rules]]`, without `who`. Such
    a token's bearer may do what a rule allows and nothing else."""
    client_id_claim: str = ""
    """Claim that the MQTT client id must equal; empty: any client id."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = (self.key_file, self.secret_file, self.jwks_file, self.jwks_url, self.discovery)
        if len([each for each in given if each]) != 1:
            raise ValueError(
                "one of key_file, secret_file, jwks_file, jwks_url and discovery is needed"
            )
        shared = any(each.startswith("HS") for each in self.algorithms)
        if self.secret_file and not all(each.startswith("HS") for each in self.algorithms):
            raise ValueError("secret_file goes with algorithms HS256, HS384, HS512 alone")
        if self.key_file and shared:
            raise ValueError("key_file holds a public key; HS algorithms take a secret_file")
        if self.jwks_url or self.discovery:
            name, url = ("jwks_url", self.jwks_url) if self.jwks_url else ("issuer", self.issuer)
            if not is_protected(url):
                raise ValueError(f"{name} is {url!r}; keys come by https, or http on this machine")
            if shared:
                raise ValueError("keys of a URL are public; HS algorithms take a secret_file")
        return self


class HttpService(Section):
    """A web service that is asked something."""

    kind: Literal["http"]
    """`http`."""
    url: str = Field(pattern=r"^https?://")
    """Where to ask."""
    method: Literal["POST", "GET"] = "POST"
    """`POST` sends `body` as JSON; `GET` as the query."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent along; `${NAME}` stands for an environment variable, for secrets."""
    timeout_ms: int = Field(default=2_000, ge=10, le=60_000)
    """How long an answer may take (ms)."""
    calls_max: int = Field(default=100, ge=1)
    """Questions under way at a time; further clients wait."""


class HttpSettings(HttpService):
    """A web service is asked who a client is and what it may do."""

    body: dict[str, str] = Field(
        default_factory=lambda: {
            "username": "{username}",
            "password": "{password}",
            "client_id": "{client_id}",
            "peer_host": "{peer_host}",
            "protocol": "{protocol}",
        }
    )
    """What is sent: names and texts, in which `{username}`, `{password}`, `{token}`, `{client_id}`,
    `{peer_host}`, `{protocol}`, `{listener}` and `{certificate_subject}` are filled."""
    unreachable: Literal["refuse", "next"] = "refuse"
    """What happens to clients when there is no answer: they are asked to try again, or the next
    authenticator is asked."""
    cache_ms: int = Field(default=10_000, ge=0)
    """How long an answer is remembered for the same credentials (ms); 0: not at all."""


class HttpRulesSettings(HttpService):
    """A web service is asked whether an MQTT client may publish to a topic name or subscribe to a
    filter. A client whose credentials brought rules of their own, and `admins`, are not asked
    about."""

    body: dict[str, str] = Field(
        default_factory=lambda: {
            "username": "{username}",
            "client_id": "{client_id}",
            "peer_host": "{peer_host}",
            "action": "{action}",
            "topic": "{topic}",
            "qos": "{qos}",
            "retain": "{retain}",
        }
    )
    """What is sent: names and texts, in which `{username}`, `{client_id}`, `{peer_host}`,
    `{protocol}`, `{listener}`, `{action}` (`publish` or `subscribe`), `{topic}`, `{qos}` and
    `{retain}` (`true` or `false`) are filled. An answer holds for all that is equal in these."""
    unreachable: Literal["deny", "next"] = "deny"
    """What holds when there is no answer: nothing is allowed, or the next authorizer is asked, and
    at last the rules."""
    cache_ms: int = Field(default=60_000, ge=1_000)
    """How long an answer is remembered (ms)."""
    cache_per_client_max: int = Field(default=100, ge=1)
    """Answers that are remembered of one client; the oldest are forgotten first."""
    cache_max: int = Field(default=100_000, ge=1)
    """The same of all clients together."""


AuthenticatorSettings = Annotated[
    CertificateSettings | PasswordFileSettings | UsersSettings | JwtSettings | HttpSettings,
    Field(discriminator="kind"),
]


class RuleSettings(Section):
    """Who may do what. A rule that denies wins over all that allow."""

    allow: bool = True
    """Whether this allows or denies."""
    who: list[str]
    """`user:<name>`, `role:<name>`, `anonymous` or `any`."""
    operations: list[str]
    """`read`, `write`, `create`, `alter`, `delete`, `describe`, `publish` (write), `subscribe`
    (read) or `all`. Who may read, write, alter or delete may also describe."""
    resources: list[str]
    """`topic:<name>`, `topic_name:<MQTT topic filter>`, `group:<name>`, `sink:<name>`,
    `transaction:<transactional id>`, `schema:<subject>`, `cluster:*` or `any:*`. A last `*` stands
    for any rest; `%c` and `%u` for the client id and the user."""
    qos: list[int] = Field(default_factory=list)
    """Only publishes and subscriptions of these QoS; empty: of any."""
    retain: bool | None = None
    """Only publishes that are (true) or are not (false) retained; left out: both."""
    exact: bool = False
    """`topic_name` alone: only the subscription to this very filter (or the publish to this name),
    not all that it matches. A rule that denies `#` so leaves narrower filters alone."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.resources:
            raise ValueError("resources is empty")
        for rule in self.rules():
            if complaint := check_rule(rule):
                raise ValueError(complaint)
        return self

    def rules(self) -> list[Rule]:
        """The rules that this section stands for."""
        return [
            Rule(
                tuple(self.who),
                tuple(self.operations),
                *_resource(text),
                self.allow,
                tuple(self.qos),
                self.retain,
                exact=self.exact,
            )
            for text in self.resources
        ]


def _resource(text: str) -> tuple[str, str]:
    kind, found, name = text.partition(":")
    if not found:
        raise ValueError(f"resource {text!r} is not <kind>:<name>")
    return canonical_kind(kind), name


def _certificates_then_users() -> list[AuthenticatorSettings]:
    return [CertificateSettings(kind="certificate"), UsersSettings(kind="users")]


class QuotaSettings(Section):
    """What a principal may use a second on this node. Who uses more has to wait: MQTT clients and
    producers are read more slowly, readers are answered later."""

    who: str = Field(pattern=r"^(user:.+|role:.+|anonymous|any)$")
    """`user:<name>`, `role:<name>`, `anonymous`, or `any`: each that has no quota of its own."""
    bytes_in_per_s: int | None = Field(default=None, ge=1)
    """Bytes written: MQTT packets, record batches; left out: no limit."""
    bytes_out_per_s: int | None = Field(default=None, ge=1)
    """Bytes of record batches read over the native protocol."""
    records_per_s: int | None = Field(default=None, ge=1)
    """Records (MQTT publishes) written, and likewise records read over the native protocol."""

    def limits(self) -> Limits:
        """The rates of this quota."""
        return Limits(self.bytes_in_per_s, self.bytes_out_per_s, self.records_per_s)


class SecuritySettings(Section):
    """Who clients are and what they may do, for every protocol."""

    anonymous: Literal["loopback", "never", "always"] = "loopback"
    """Where clients that show nothing are taken in: on the loopback interface and unix sockets,
    nowhere, or everywhere."""
    authenticators: list[AuthenticatorSettings] = Field(default_factory=_certificates_then_users)
    """Who is asked who a client is, in this order, after plugins. The first that knows decides; a
    unknown user or token is refused."""
    authorizers: list[HttpRulesSettings] = Field(default_factory=list)
    """Who is asked what an MQTT client may do, in this order, after plugins and before the rules.
    The first that says yes or no decides."""
    scram: bool = True
    """Whether SCRAM-SHA-256 and -512 are offered, for users whose keys are kept."""
    admins: Reloadable[list[str]] = Field(default_factory=list)
    """`user:<name>` or `role:<name>`: they may do everything, whatever the rules."""
    rules: Reloadable[list[RuleSettings]] = Field(default_factory=list)
    """Who may do what, together with `rules_file` and the rules that the MetaService keeps
    (`lakemq acl`)."""
    rules_file: str = ""
    """TOML file with more `[[rules]]`. It is read again when it changes."""
    unmatched: Reloadable[Literal["", "allow", "deny"]] = ""
    """What holds for what no rule is about; empty: `deny` where `rules` or `rules_file` is written,
    else `allow`."""
    quotas: Reloadable[list[QuotaSettings]] = Field(default_factory=list)
    """How much a principal may use, together with the quotas that the MetaService keeps (`lakemq
    quota`), which hold where both are about the same."""
    password_threads: int = Field(default=2, ge=1, le=64)
    """Threads that check passwords."""
    passwords_waiting_max: int = Field(default=1_000, ge=1)
    """Logins that may wait for them, addresses in turn. Where there are more, the newest of the
    address that has most is told to try again."""
    failures_max: Reloadable[int] = Field(default=5, ge=0)
    """Wrong passwords for one user from one address before it has to wait; 0: never."""
    failures_per_host_max: Reloadable[int] = Field(default=50, ge=0)
    """The same for all users of one address; 0: never."""
    lockout_ms: Reloadable[int] = Field(default=1_000, ge=1)
    """First wait, doubled by each further failure (ms)."""
    lockout_max_ms: Reloadable[int] = Field(default=60_000, ge=1)
    """Longest wait (ms)."""
    audit_retention_ms: Unlimited = Field(default=90 * 24 * 3_600_000, ge=-1)
    """How long the audit log (topic `__audit`) keeps what operators changed (ms); -1 or "none": for
    ever."""
    token_lifetime_ms: Reloadable[int] = Field(default=3_600_000, ge=10_000)
    """How long a token holds that a native client gets for a SCRAM exchange (ms)."""

    @field_validator("admins")
    @classmethod
    def _principals(cls, value: list[str]) -> list[str]:
        for each in value:
            head, _, tail = each.partition(":")
            if head not in ("user", "role") or not tail:
                raise ValueError(f"{each!r} is neither user:<name> nor role:<name>")
        return value

    def unmatched_allows(self) -> bool:
        """The default for what no rule covers."""
        if self.unmatched:
            return self.unmatched == "allow"
        return not (self.rules or self.rules_file)

    def audit_retention(self) -> int | None:
        """ms; None: for ever."""
        return None if self.audit_retention_ms < 0 else self.audit_retention_ms

    def attempt_rules(self) -> AttemptRules:
        """The limits of failed logins."""
        return AttemptRules(
            self.failures_max,
            self.failures_per_host_max,
            self.lockout_ms,
            max(self.lockout_ms, self.lockout_max_ms),
        )


class RulesFile(Section):
    """A file that `rules_file` names."""

    rules: list[RuleSettings] = Field(default_factory=list)
    """The rules."""
