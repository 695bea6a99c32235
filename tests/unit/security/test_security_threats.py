"""Goal: each line of the threat model in docs/security.md is held by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs/security.md"
UNIT: Final = "unit/security/test_security_"
TOKENS: Final = "unit/security/tokens/test_security_"
NODE: Final = "integration/security/test_security_node.py"
INTERNAL: Final = "integration/node/test_internal_topics.py"
PEERS: Final = "integration/cluster/test_peer_streams.py"
ATTACKS: Final = "integration/dashboard/test_dashboard_attacks.py"
ADMIN_COSTS: Final = "unit/admin/test_admin_costs.py"
WRONG_PEERS: Final = "unit/broker_core/cluster/test_wrong_peers.py"
CERTIFICATES: Final = "integration/meta/test_meta_certificates.py"

HELD_BY: Final[dict[str, tuple[str, ...]]] = {
    "anonymous": ("unit/broker_core/test_access.py::test_anonymous_on_loopback_only",),
    "guessing": (
        f"{UNIT}lockouts.py::test_a_guess_that_looks_like_a_token_is_a_guess",
        f"{UNIT}lockouts.py::test_an_ipv6_address_stands_for_its_network",
        f"{UNIT}lockouts.py::test_one_address_cannot_fill_the_line_of_logins",
        f"{UNIT}users.py::test_one_address_does_not_lock_out_another_but_many_names_lock_the_address",
    ),
    "names": (
        f"{UNIT}users.py::test_nobody_takes_as_long_as_somebody",
        f"{UNIT}users.py::test_right_and_wrong_passwords",
        f"{UNIT}withdrawn.py::test_salts_of_nobody_are_the_same_on_all_nodes_and_after_a_restart",
    ),
    "tokens": (
        f"{TOKENS}tokens.py::test_none_and_confused_algorithms_are_refused",
        f"{UNIT}lockouts.py::test_odd_tokens_are_refused_and_counted",
        f"{UNIT}caches.py::test_a_token_bound_to_a_client_id_is_no_others_once_it_was_used",
        f"{UNIT}caches.py::test_a_remembered_token_ends",
        f"{TOKENS}key_sets.py::test_made_up_key_ids_cause_no_traffic",
        f"{TOKENS}key_sets.py::test_discovery",
    ),
    "keys": (
        "unit/broker_core/test_api_keys.py::test_what_looks_like_a_key_is_refused",
        "unit/broker_core/test_api_keys.py::test_an_expired_key_is_refused",
        "integration/admin/test_admin_resources.py::test_an_api_key_opens_until_it_is_revoked",
    ),
    "withdrawn": (
        f"{UNIT}withdrawn.py::test_what_a_password_opened_ends_with_it",
        f"{UNIT}withdrawn.py::test_mqtt_connections_end_with_their_credentials",
        f"{NODE}::test_what_a_password_of_the_file_opened_ends_with_it",
    ),
    "rules": (
        f"{UNIT}rules.py::test_deny_wins_whatever_the_order",
        f"{UNIT}rules.py::test_wrong_rules_are_explained",
        f"{UNIT}settings.py::test_rules_that_allow_nothing_new_are_told_of_once",
    ),
    "internal": (
        f"{INTERNAL}::test_native_refuses_who_may_do_everything_else",
        f"{INTERNAL}::test_an_operator_changes_none_either",
        f"{INTERNAL}::test_the_http_admin_shows_them_to_operators_alone",
        f"{INTERNAL}::test_mqtt_replays_none",
        "unit/mqtt/state/test_mqtt_stored_records.py::test_no_record_makes_a_session_the_brokers_own",
        "unit/journal/test_journal_tiering.py::test_internal_topics_stay_local",
    ),
    "existence": (
        f"{INTERNAL}::test_who_has_no_right_does_not_learn_what_there_is",
        f"{INTERNAL}::test_who_watches_is_told_of_no_topic_that_it_may_not_see",
    ),
    "secrets": (
        "unit/broker_core/test_access.py::test_secrets_are_not_shown",
        f"{UNIT}settings.py::test_a_fault_beside_a_secret_does_not_show_it",
        "integration/meta/test_meta_operations.py"
        "::test_a_restored_cluster_has_everything_but_the_old_id",
    ),
    "mqtt-peer": (
        "unit/mqtt/bounds/test_mqtt_growth.py::test_decoding_grows_no_faster_than_the_packet",
        "unit/mqtt/bounds/test_mqtt_bounds.py::test_too_many_user_properties_in_connect_are_refused",
        "unit/broker_core/test_connection_limits.py"
        "::test_one_peer_does_not_take_the_whole_share_of_the_unauthenticated",
    ),
    "mqtt-names": (
        f"{NODE}::test_a_device_publishes_where_it_may",
        f"{NODE}::test_a_filter_wider_than_the_rights_is_refused",
        f"{UNIT}rules.py::test_agrees_with_the_plain_evaluator",
    ),
    "mqtt-sessions": (
        "unit/mqtt/session/test_mqtt_principals.py::test_a_session_is_not_taken_by_who_knows_its_client_id",
        "unit/mqtt/session/test_mqtt_principals.py::test_anonymous_clients_count_as_one",
    ),
    "mqtt-shares": (
        "unit/mqtt/session/test_mqtt_principals.py::test_one_user_does_not_use_up_all_shapes_of_filters",
        "unit/mqtt/session/test_mqtt_principals.py::test_one_user_does_not_have_all_sessions",
        "unit/mqtt/session/test_mqtt_principals.py::test_one_user_does_not_retain_everything",
    ),
    "mqtt-records": (
        "unit/mqtt/state/test_mqtt_stored_records.py"
        "::test_clients_may_not_write_what_mqtt_believes_into_bound_topics",
        "unit/mqtt/state/test_mqtt_stored_records.py::test_a_start_steps_over_a_corrupt_batch",
        "unit/mqtt/state/test_mqtt_stored_records.py::test_no_record_stops_a_start",
    ),
    "mqtt-certificate": (f"{UNIT}caches.py::test_blanks_of_a_certificates_name_are_part_of_it",),
    "native-peer": (
        "integration/native/test_native_unauthenticated.py"
        "::test_unfinished_messages_hold_little_and_others_are_served",
        "integration/native/test_native_unauthenticated.py"
        "::test_silent_connections_are_ended_and_leave_room",
        "integration/native/test_native_unauthenticated.py"
        "::test_empty_logins_do_not_take_the_turns_of_others",
    ),
    "native-schemas": (
        "unit/broker_core/schemas/test_json_validation.py::test_no_pattern_backtracks",
        "unit/broker_core/schemas/test_json_validation.py"
        "::test_work_that_doubles_with_each_level_is_refused",
    ),
    "meta-peer": (
        "integration/meta/test_meta_unfinished.py"
        "::test_unfinished_messages_hold_little_and_others_are_served",
    ),
    "native-producers": (
        "integration/native/test_producer_owners.py::test_nobody_is_fenced_by_another",
        "unit/broker_core/publishing/test_producer_owners.py::test_an_id_is_its_owners",
    ),
    "native-rights": (
        f"{NODE}::test_native_refuses",
        f"{INTERNAL}::test_lists_leave_them_out_but_an_operators",
        f"{NODE}::test_what_a_password_of_the_file_opened_ends_with_it",
    ),
    "native-batches": (
        "unit/broker_core/records/test_batch_check.py::test_garbage_under_right_crcs_is_refused",
        "unit/broker_core/records/test_batch_check.py::test_a_batch_has_a_bounded_number_of_records",
        "unit/broker_core/records/test_record_batch_damage.py"
        "::test_body_that_swells_beyond_its_header_takes_no_memory",
    ),
    "native-owners": (
        f"{NODE}::test_a_transactional_id_has_rules",
        "integration/native/test_native_shares.py::test_there_is_room_for_others",
        f"{UNIT}rules.py::test_a_rule_about_each_kind_is_about_it",
    ),
    "meta-names": (
        f"{CERTIFICATES}::test_no_service_answers_a_device",
        f"{CERTIFICATES}::test_nodes_and_operators_are_served",
    ),
    "meta-join": (
        f"{CERTIFICATES}::test_an_operator_is_no_node",
        "integration/meta/test_meta_discovery.py"
        "::test_a_node_joins_only_under_a_name_of_its_certificate",
    ),
    "meta-authority": (
        f"{UNIT}authorities.py::test_an_authority_of_both_is_refused",
        f"{UNIT}authorities.py::test_an_authority_that_the_members_signed_is_refused",
    ),
    "peers-names": (
        f"{PEERS}::test_both_sides_prove_their_names_with_certificates",
        f"{PEERS}::test_a_caller_is_refused_before_anything_of_it_is_read",
        "unit/broker_core/cluster/test_peer_identity.py::test_others_are_refused",
    ),
    "peers-plain": (f"{PEERS}::test_plain_text_is_for_loopback_and_ports_for_one",),
    "peers-bounds": (
        f"{PEERS}::test_a_node_may_have_a_few_streams_only",
        f"{PEERS}::test_a_leader_sends_no_more_than_the_credit",
        f"{PEERS}::test_bad_bytes_end_the_stream",
        "unit/broker_core/cluster/test_replica_frames.py::test_a_large_ask_is_refused_before_it_is_parsed",
        f"{WRONG_PEERS}::test_refusals_that_are_not_taken_end_the_reading",
        f"{WRONG_PEERS}::test_answers_to_asks_that_are_not_taken_end_the_reading",
        f"{WRONG_PEERS}::test_fields_that_say_nothing_are_not_gone_through",
        f"{WRONG_PEERS}::test_partitions_that_are_read_at_a_time_share_the_credit",
        f"{WRONG_PEERS}::test_a_node_without_a_replica_ends_no_leadership",
        f"{WRONG_PEERS}::test_a_later_epoch_that_the_catalog_does_not_know_costs_an_election",
    ),
    "meta-plain": ("integration/meta/test_meta_member.py::test_plain_text_is_for_loopback_only",),
    "admin-rights": (
        f"{NODE}::test_the_http_admin_asks_who_one_is",
        "integration/admin/test_admin_limits.py"
        "::test_names_of_degraded_partitions_are_for_those_who_may_ask",
        "unit/admin/test_admin_roles.py::test_every_route_is_for_the_roles_that_it_should_be_for",
        "integration/admin/test_schema_registry.py::test_rights_are_those_on_the_subject",
    ),
    "admin-browser": (
        "integration/admin/test_admin_limits.py::test_a_name_that_is_not_ours_reads_nothing",
        "integration/admin/test_admin.py::test_web_pages_change_nothing",
        "integration/admin/test_schema_registry.py::test_web_pages_delete_nothing",
    ),
    "admin-audit": (
        "integration/admin/test_admin_resources.py::test_changes_are_in_the_audit_log",
        "unit/admin/test_admin_service.py::test_changes_are_audited_without_secrets",
        "integration/admin/test_admin_limits.py"
        "::test_a_change_that_is_not_allowed_is_in_the_audit_log",
        f"{ADMIN_COSTS}::test_a_change_is_in_the_audit_log_whatever_was_asked",
        f"{ADMIN_COSTS}::test_refused_changes_of_one_caller_do_not_fill_the_disk",
    ),
    "admin-dashboard": (
        f"{ATTACKS}::test_hundreds_that_end_nothing_cost_others_nothing",
        f"{ATTACKS}::test_guesses_behind_a_proxy_lock_out_nobody_else",
        f"{ATTACKS}::test_who_is_no_proxy_is_not_believed",
        f"{ATTACKS}::test_passwords_go_to_an_api_that_shows_who_it_is",
        "unit/dashboard/test_dashboard_parts.py"
        "::test_figures_of_all_nodes_come_from_the_one_that_is_configured",
    ),
    "admin-bounds": (
        "integration/admin/test_admin_limits.py::test_a_connection_that_asks_nothing_is_closed",
        "integration/admin/test_admin_limits.py::test_one_address_does_not_take_all_connections",
        f"{ADMIN_COSTS}::test_who_reads_records_of_another_node_keeps_no_operator_out",
        f"{ADMIN_COSTS}::test_a_query_of_thousands_of_parameters_costs_no_time",
        f"{ADMIN_COSTS}::test_no_body_that_an_answer_could_not_hold_is_taken",
    ),
}
"""Anchor (without `threat-`) -> tests that fail where the line does not hold."""


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_line_of_the_page_is_held() -> None:
    anchors = re.findall(r'<a id="threat-([a-z-]+)"></a>', PAGE.read_text())
    assert len(anchors) == len(set(anchors))
    assert sorted(anchors) == sorted(HELD_BY)


@pytest.mark.parametrize("anchor", HELD_BY)
def test_what_holds_it_exists(anchor: str) -> None:
    for name in HELD_BY[anchor]:
        file, _, test = name.partition("::")
        assert test in defined_in(file), name
