"""Which tests must notice a bug in which module: its own, and only fast ones."""

from __future__ import annotations

from typing import Final

_UNIT: Final = "tests/unit/"
_SIMULATION: Final = "tests/simulation/raft/test_raft_"
_BATCH: Final = (
    "broker_core/records/test_record_batch",
    "broker_core/records/test_record_batch_later",
    "broker_core/records/test_record_headers",
    "broker_core/records/test_batch_check",
)
_RAFT: Final = ("rules", "recovery", "stale", "membership")

_UNIT_TESTS: Final[dict[str, tuple[str, ...]]] = {
    "broker_core/api/authorization_header.py": ("security/test_security_scram",),
    "broker_core/api/schemas/avro_shape.py": ("broker_core/schemas/test_avro_shape",),
    "broker_core/api/scheduling/due_queue.py": ("broker_core/transactions/test_due_queue",),
    "broker_core/api/limits/rates.py": ("broker_core/test_rates",),
    "broker_core/api/records/partitioner.py": ("broker_core/records/test_partitioner",),
    "broker_core/api/records/batch.py": _BATCH,
    "broker_core/api/records/headers.py": _BATCH,
    "broker_core/publishing/batch_check.py": _BATCH,
    "broker_core/replication/follower.py": ("broker_core/replication/test_partition_follower",),
    "broker_core/replication/leader.py": ("broker_core/replication/test_partition_leader",),
    "broker_core/replication/lease.py": ("broker_core/replication/test_lease_slots",),
    "broker_core/replication/roles.py": ("broker_core/replication/test_partition_roles",),
    "broker_core/replication/slots.py": ("broker_core/replication/test_lease_slots",),
    "broker_core/security/authn/attempts.py": (
        "security/test_security_lockouts", "security/test_security_users",
        "security/test_security_caches",
    ),
    "broker_core/security/catalog_forms.py": ("security/test_security_rules",),
    "broker_core/security/quotas.py": (
        "security/test_security_quotas", "security/test_security_caches",
    ),
    "broker_core/security/authz/rules.py": ("security/test_security_rules",),
    "broker_core/security/authn/scram.py": ("security/test_security_scram",),
    "broker_core/api/topic_filters.py": ("broker_core/test_topic_filters",),
    "broker_core/security/authn/users.py": ("security/test_security_users",),
    "broker_core/scheduling/formats.py": ("broker_core/transactions/test_transaction_formats",),
    "broker_core/transactions/formats.py": ("broker_core/transactions/test_transaction_formats",),
    "broker_core/scheduling/queue.py": ("broker_core/transactions/test_schedule_queue",),
    "meta_service/control/balance.py": ("meta_service/test_meta_balance",),
    "meta_service/control/dead_processes.py": ("meta_service/control/test_dead_processes",),
    "meta_service/control/newcomers.py": ("meta_service/control/test_newcomers",),
    "meta_service/catalog/command_codec.py": (
        "meta_service/test_meta_catalog", "meta_service/test_meta_control",
        "meta_service/test_meta_format_page",
    ),
    "meta_service/catalog/moves.py": ("meta_service/test_meta_balance",),
    "meta_service/catalog/nodes.py": (
        "meta_service/test_meta_control", "meta_service/test_meta_catalog",
    ),
    "meta_service/catalog/pages/changes.py": ("meta_service/cluster/test_cluster_commands",),
    "meta_service/catalog/pages/cluster.py": ("meta_service/cluster/test_cluster_commands",),
    "meta_service/catalog/pages/registration.py": ("meta_service/cluster/test_cluster_commands",),
    "meta_service/catalog/pages/rows.py": ("meta_service/cluster/test_cluster_commands",),
    "meta_service/catalog/partitions.py": (
        "meta_service/cluster/test_settle", "meta_service/test_meta_control",
        "meta_service/test_meta_balance",
    ),
    "meta_service/catalog/schemas.py": ("meta_service/test_meta_schemas",),
    "meta_service/catalog/topics.py": (
        "meta_service/test_meta_catalog", "meta_service/test_meta_control",
    ),
    "meta_service/raft/log/log_format.py": (
        "meta_service/test_meta_raft_log", "meta_service/test_meta_format_page",
    ),
    "plugins/journal/segment/checkpoint.py": ("journal/test_journal_formats",),
    "plugins/journal/segment/epochs.py": ("journal/test_journal_formats",),
    "plugins/journal/segment/index.py": ("journal/test_journal_formats",),
    "plugins/journal/segment/manifest.py": ("journal/test_journal_formats",),
    "plugins/journal/segment/producers.py": (
        "journal/test_journal_producers", "journal/test_journal_formats",
    ),
    "plugins/journal/maintenance/retention.py": ("journal/test_journal_retention",),
    "plugins/ledger/counting.py": ("ledger/test_ledger_counting",),
    "plugins/ledger/device_table.py": ("ledger/test_device_table",),
    "broker_core/groups/balance.py": ("broker_core/groups/test_groups",),
    "broker_core/groups/coordinator.py": ("broker_core/groups/test_groups",),
    "broker_core/groups/offset_expiry.py": ("broker_core/groups/test_offset_expiry",),
    "broker_core/groups/offset_table.py": (
        "broker_core/groups/test_offset_table", "broker_core/groups/test_offset_expiry",
    ),
    "broker_core/queues/partition_state.py": (
        "queues/test_queue_partition", "queues/test_queue_answers", "queues/test_queue_simulation",
    ),
    "broker_core/queues/settings.py": ("queues/test_queue_partition",),
    "broker_core/queues/snapshot.py": ("queues/test_queue_partition",),
}  # fmt: skip

TESTS: Final[dict[str, tuple[str, ...]]] = {
    **{
        module: tuple(f"{_UNIT}{name}.py" for name in names)
        for module, names in _UNIT_TESTS.items()
    },
    **{
        f"meta_service/raft/{module}.py": tuple(f"{_SIMULATION}{name}.py" for name in _RAFT)
        for module in (
            "elections",
            "membership",
            "reads",
            "recovery",
            "replication",
            "wire_format",
        )
    },
}
"""Module -> its tests, by their paths."""
