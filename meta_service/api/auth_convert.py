"""Between the messages of `auth.proto` and the values of `auth`. No IO."""

from __future__ import annotations

from lakemq.meta_service.api.auth import AclRule, Entry, Quota, ScramCredential, User
from lakemq.meta_service.api.errors import InvalidArgument
from lakemq.meta_service.proto import auth_pb2 as pb


def entry_message(entry: Entry) -> pb.AuthEntry:
    if isinstance(entry, User):
        return pb.AuthEntry(user=_user_message(entry), revision=entry.revision)
    if isinstance(entry, AclRule):
        rule = pb.AclRule(
            rule_id=entry.rule_id,
            principal=entry.principal,
            effect=entry.effect,
            operation=entry.operation,
            resource=entry.resource,
            pattern=entry.pattern,
            pattern_type=entry.pattern_type,
            qos=entry.qos,
            retain=entry.retain,
        )
        return pb.AuthEntry(rule=rule, revision=entry.revision)
    quota = pb.Quota(
        principal=entry.principal,
        bytes_in_per_s=entry.bytes_in_per_s,
        bytes_out_per_s=entry.bytes_out_per_s,
        requests_per_s=entry.requests_per_s,
        records_per_s=entry.records_per_s,
        connections=entry.connections,
    )
    return pb.AuthEntry(quota=quota, revision=entry.revision)


def _user_message(user: User) -> pb.User:
    scram = [
        pb.ScramCredential(
            mechanism=each.mechanism,
            salt=each.salt,
            iterations=each.iterations,
            stored_key=each.stored_key,
            server_key=each.server_key,
        )
        for each in user.scram
    ]
    return pb.User(
        name=user.name,
        roles=user.roles,
        attributes=user.attributes,
        disabled=user.disabled,
        scram=scram,
        password_hash=user.password_hash,
    )


def entry_of(message: pb.AuthEntry) -> Entry:
    """Raises InvalidArgument when it holds none."""
    which = message.WhichOneof("entry")
    if which == "user":
        return _user_of(message.user, message.revision)
    if which == "rule":
        rule = message.rule
        return AclRule(
            rule.rule_id,
            rule.principal,
            rule.effect,
            rule.operation,
            rule.resource,
            rule.pattern,
            rule.pattern_type,
            tuple(rule.qos),
            rule.retain if rule.HasField("retain") else None,
            message.revision,
        )
    if which == "quota":
        return _quota_of(message.quota, message.revision)
    raise InvalidArgument("entry: must be a user, a rule or a quota")


def _user_of(message: pb.User, revision: int) -> User:
    scram = tuple(
        ScramCredential(
            each.mechanism, each.salt, each.iterations, each.stored_key, each.server_key
        )
        for each in message.scram
    )
    return User(
        message.name,
        tuple(message.roles),
        dict(message.attributes),
        message.disabled,
        scram,
        message.password_hash,
        revision,
    )


def _quota_of(message: pb.Quota, revision: int) -> Quota:
    return Quota(
        message.principal,
        message.bytes_in_per_s if message.HasField("bytes_in_per_s") else None,
        message.bytes_out_per_s if message.HasField("bytes_out_per_s") else None,
        message.requests_per_s if message.HasField("requests_per_s") else None,
        message.records_per_s if message.HasField("records_per_s") else None,
        message.connections if message.HasField("connections") else None,
        revision,
    )
