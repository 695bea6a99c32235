"""The whole catalog: beside plain dicts, replayed, and from a snapshot with the tail behind it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakemq.meta_service.api.auth import AclRule, Quota, User
from lakemq.meta_service.catalog import apply as apply_module
from lakemq.meta_service.catalog.auth import DeleteUser, put_command
from lakemq.meta_service.catalog.command_codec import (
    FEATURE_LEVEL,
    Command,
    Header,
    encode_command,
)
from lakemq.meta_service.catalog.commands import (
    AllocateIds,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    OpenSession,
    PlaceTopic,
    RegisterNode,
    RegisterStorage,
    SetFeatureLevel,
    Tick,
    Txn,
)
from lakemq.meta_service.catalog.control_commands import (
    ChangeInSync,
    ElectLeaders,
    RemoveNode,
    RetireNode,
    SetNodeState,
)
from lakemq.meta_service.catalog.moves import FinishMoves, SetRebalance, StartMoves
from lakemq.meta_service.catalog.nodes import decode_node, node_key
from lakemq.meta_service.catalog.pages.commands import (
    AlterReplicatedTopic,
    ChangeInSyncMany,
    CreateReplicatedTopic,
    ElectUnclean,
    FinishMovesInPages,
    ForgetLost,
    LeaveNode,
    PageTopics,
    RegisterBroker,
    Resign,
    SettlePages,
)
from lakemq.meta_service.catalog.schemas import DeleteSchema, RegisterSchema, SetCompatibility
from lakemq.meta_service.catalog.tables import (
    EVENTS,
    KEYS,
    NODE_PREFIX,
    REPLICA_COUNTS,
    TOPIC_PREFIX,
    decode_events,
    decode_number,
    decode_row,
    unpack,
)
from lakemq.meta_service.catalog.topics import decode_topic, topic_key
from tests.support.meta.catalog_rig import Catalog
from tests.support.seeds import examples

IDS = {"t": "a" * 32, "u": "b" * 32}
_nodes = st.sampled_from(["n1", "n2", "n3"])
_topics = st.sampled_from(["t", "u"])
_ids = _topics.map(IDS.__getitem__)
_raw_ids = _ids.map(bytes.fromhex)
_pages = _raw_ids.map(lambda topic_id: topic_id + bytes(4))
_few = st.integers(0, 3)
_keys = st.sampled_from([b"a", b"b"])
_some = st.lists(_nodes, min_size=1, max_size=3, unique=True).map(tuple)
_none_or = st.none() | st.integers(0, 30)
_operation = st.tuples(_keys, st.none() | st.binary(max_size=2), st.just(0))

COMMANDS: dict[type[Command], tuple[Any, ...]] = {
    Txn: (
        st.lists(st.tuples(_keys, st.integers(0, 20)), max_size=1).map(tuple),
        st.lists(_operation, max_size=2).map(tuple),
        st.lists(_operation, max_size=2).map(tuple),
    ),
    Tick: (st.integers(0, 10**6),),
    AllocateIds: (st.sampled_from(["p", "q"]), st.integers(1, 5)),
    RegisterNode: (
        _nodes, st.just({"x": "y:1"}), st.sampled_from(["r1", "r2"]), st.just(""), st.just(1),
        st.booleans(),
    ),
    RegisterStorage: (
        _nodes, st.just({"x": "y:1"}), st.just("r1"), st.just(""), st.just(1), st.booleans(),
        st.sampled_from(["1" * 32, "2" * 32]),
    ),
    SetNodeState: (_nodes, st.integers(1, 12), st.sampled_from(["fenced", "active", "draining"])),
    RemoveNode: (_nodes,),
    RetireNode: (_nodes, st.integers(1, 12)),
    DeleteTopic: (_topics,),
    AlterTopic: (
        _topics, st.none() | st.integers(1, 4),
        st.none() | st.sampled_from([{}, {"unclean_leader_election": 1}]),
    ),
    GrowTopic: (_topics, st.integers(1, 4), st.none(), st.just(("n1",))),
    PlaceTopic: (
        _topics, st.just("c" * 32), st.integers(1, 3), st.integers(1, 3), st.just({}),
        st.just(("n2",)),
    ),
    RegisterBroker: (
        _nodes, st.just({"x": "y:1"}), st.just("r1"), st.just(""), st.just(4), st.booleans(),
        st.sampled_from(["", "1" * 32, "2" * 32]), st.sampled_from([(), ("meta",)]), st.booleans(),
        st.sampled_from([(), ((b"\xaa" * 16, 0),)]),
    ),
    LeaveNode: (_nodes, st.integers(1, 12)),
    ForgetLost: (_nodes,),
    CreateReplicatedTopic: (
        _topics, st.just("d" * 32), st.sampled_from([1, 33]), st.just(3), st.just({}), st.just(()),
        st.integers(1, 3),
    ),
    AlterReplicatedTopic: (
        _topics, st.sampled_from([None, 34]), st.none(), st.just(()), st.none() | st.integers(1, 3),
        st.none() | st.integers(1, 3),
    ),
    PageTopics: (st.integers(1, 4),),
    SettlePages: (st.lists(_pages, max_size=2).map(tuple), st.booleans(), _some),
    FinishMovesInPages: (st.lists(_pages, max_size=2).map(tuple),),
    ChangeInSyncMany: (
        _nodes, st.integers(1, 12),
        st.lists(
            st.tuples(
                _raw_ids, _few, _few, _few, _some.map(lambda some: tuple((n, 1) for n in some))
            ),
            max_size=2,
        ).map(tuple),
    ),
    Resign: (
        _nodes, st.integers(1, 12),
        st.lists(st.tuples(_raw_ids, _few, _few), max_size=2).map(tuple), _some,
    ),
    ElectUnclean: (_topics, _few, _few, _nodes),
    ElectLeaders: (st.lists(_topics, max_size=2).map(tuple), st.booleans()),
    ChangeInSync: (_topics, _ids, _few, _nodes, _few, _few, _some),
    StartMoves: (st.lists(st.tuples(_topics, _ids, _few, _few, _some), max_size=2).map(tuple),),
    FinishMoves: (st.lists(_topics, max_size=2).map(tuple),),
    SetRebalance: (st.booleans(), st.just(()), st.integers(1, 5)),
    DeleteUser: (st.just("ann"), _none_or),
    RegisterSchema: (st.just("s"), st.just("avro"), st.sampled_from(["1", "2"]), st.none() | _few),
    DeleteSchema: (st.just("s"), st.none() | st.integers(1, 3)),
    SetCompatibility: (st.sampled_from(["", "s"]), st.sampled_from([None, "none"])),
}  # fmt: skip

_create = _topics.flatmap(
    lambda name: st.builds(
        CreateTopic, st.just(name), st.just(IDS[name]), st.integers(1, 3), st.integers(1, 4),
        st.just({}),
    )
)  # fmt: skip
_entries = st.sampled_from(
    [User("ann"), AclRule("r", "*", "allow", "*", "*", "*"), Quota("*", records_per_s=1)]
)
_put = st.builds(put_command, _entries, _none_or)
_one: Any = st.one_of(
    _create, _put, *(st.builds(kind, *fields) for kind, fields in COMMANDS.items())
)
_histories = st.lists(_one, max_size=40)


def test_every_kind_of_command_is_tried() -> None:
    tried = {*COMMANDS, CreateTopic, *map(type, (put_command(e, None) for e in _entries.elements))}
    left_out = {kind.__name__ for kind in apply_module._HANDLERS} - {t.__name__ for t in tried}
    # Tried elsewhere: what ends a session of this very client, sets the level, or is tried alike.
    assert left_out == {
        "SetClusterId", "SetFeatureLevel", "OpenSession", "ExpireSessions", "DeleteRule",
        "DeleteQuota",
    }  # fmt: skip


def begin(level: int = FEATURE_LEVEL) -> Catalog:
    catalog = Catalog()
    if level > 1:
        catalog.do(SetFeatureLevel(level))
    for name in ("n1", "n2"):
        catalog.do(RegisterNode(name, {}, "", "", 1, False))
    return catalog


@given(_histories, st.integers(0, 40))
@settings(max_examples=examples(150))
def test_a_replay_and_a_snapshot_with_its_tail_are_the_same(
    commands: list[Command], cut: int
) -> None:
    one, other = begin(), begin()
    late: Catalog | None = None
    for number, command in enumerate(commands):
        if number == cut:
            late = Catalog()
            late.store.rows = dict(one.store.rows)
            late.state = late.store.state()
        data = encode_command(command)
        applied = one.apply_bytes(data)
        assert applied.result.code != "INTERNAL", applied.result.payload
        assert other.apply_bytes(data) == applied
        if late is not None:
            assert late.apply_bytes(data) == applied
    assert other.store.rows == one.store.rows
    assert late is None or late.store.rows == one.store.rows


_about_partitions: Any = st.sampled_from(
    [ChangeInSync] * 4
    + [StartMoves, FinishMoves] * 3
    + [SetNodeState, ElectLeaders] * 2
    + [RegisterNode, RemoveNode, DeleteTopic, AlterTopic]
).flatmap(lambda kind: st.builds(kind, *COMMANDS[kind]))


def aimed(catalog: Catalog, command: Command) -> Command:
    """At what is there, with the epochs of the moment: as somebody asks who knows what goes on."""
    now = {(name, number): each for (_, name, number), each in _partitions(catalog).items()}
    if isinstance(command, SetNodeState):
        value = catalog.value(node_key(command.node_id))
        epoch = decode_node(node_key(command.node_id), value).broker_epoch if value else 0
        return SetNodeState(command.node_id, epoch, command.state)
    if isinstance(command, FinishMoves | ElectLeaders):
        fields = {"topics": tuple(IDS)}
        return replace(command, **fields)  # type: ignore[arg-type] # both have topics
    if isinstance(command, StartMoves):
        moves = [(name, 0, target) for name, _, _, _, target in command.moves if (name, 0) in now]
        return StartMoves(
            tuple((n, IDS[n], p, now[n, p].partition_epoch, target) for n, p, target in moves)
        )
    old = now.get((command.topic, 0)) if isinstance(command, ChangeInSync) else None
    if old is None or old.leader is None or not isinstance(command, ChangeInSync):
        return command
    in_sync = tuple(n for n in old.replicas if n in (old.leader, *command.in_sync))
    epochs = (old.leader_epoch, old.partition_epoch)
    return ChangeInSync(command.topic, IDS[command.topic], 0, old.leader, *epochs, in_sync)


@given(st.lists(st.tuples(_about_partitions, st.integers(0, 9)), min_size=8, max_size=40))
@settings(max_examples=examples(200))
def test_whatever_is_asked_the_rules_of_partitions_hold(
    commands: list[tuple[Command, int]],
) -> None:
    """Of levels 2 and 3; `tests/simulation/test_catalog_partitions.py` has those of level 4."""
    catalog = begin(level=3)
    catalog.do(CreateTopic("t", IDS["t"], 2, 2, {}))
    catalog.do(RegisterNode("n3", {}, "", "", 1, False))
    catalog.do(CreateTopic("u", IDS["u"], 1, 3, {}))
    epochs: dict[tuple[int, str, int], tuple[int, int]] = {}
    for command, care in commands:
        before = _partitions(catalog)
        unclean = {name for name in IDS if _is_unclean(catalog, name)}
        catalog.do(aimed(catalog, command) if care else command)
        held: Counter[str] = Counter()
        for key, now in _partitions(catalog).items():
            held.update(now.replicas)
            assert len(set(now.replicas)) == len(now.replicas)
            assert set(now.in_sync) <= set(now.replicas)
            assert bool(now.in_sync) is bool(now.replicas), "never empty"
            assert now.leader is None or now.leader in now.in_sync
            assert set(now.target) <= set(now.replicas)
            last = epochs.get(key, (0, 0))
            assert (now.leader_epoch, now.partition_epoch) >= last
            epochs[key] = (now.leader_epoch, now.partition_epoch)
            old = before.get(key)
            if old is not None and old != now:
                assert now.partition_epoch > old.partition_epoch, "a change raises the epoch"
                if now.leader != old.leader:
                    assert now.leader_epoch > old.leader_epoch
                if not isinstance(command, ChangeInSync) and key[1] not in unclean and old.replicas:
                    assert set(now.in_sync) <= set(old.in_sync), "only its leader lets one in"
        for key, data in catalog.store.scan(REPLICA_COUNTS):
            assert decode_number(data) == held.pop(key[1:].decode(), 0)
        assert not held


def _scan(catalog: Catalog, prefix: bytes) -> list[tuple[bytes, bytes]]:
    return list(catalog.store.scan(KEYS + prefix))


def _is_unclean(catalog: Catalog, name: str) -> bool:
    return b"unclean_leader_election" in (catalog.value(topic_key(name)) or b"")


def _partitions(catalog: Catalog) -> dict[tuple[int, str, int], Any]:
    """By (revision of the topic's creation, topic, partition)."""
    found = {}
    for key, data in _scan(catalog, TOPIC_PREFIX):
        row = decode_row(data)
        topic = decode_topic(key[1:], row.value, row.mod_revision)
        for partition in topic.partitions:
            found[row.create_revision, topic.name, partition.partition] = partition
    return found


@given(_histories)
@settings(max_examples=examples(100))
def test_events_tell_all_that_rows_are(commands: list[Command]) -> None:
    catalog = begin()
    for command in commands:
        catalog.do(command)
    told: dict[bytes, bytes] = {}
    revisions = []
    for key, data in catalog.store.scan(EVENTS):
        revisions.append(int.from_bytes(key[1:], "big"))
        for changed, value in decode_events(data):
            if value is None:
                del told[changed]
            else:
                told[changed] = value
    assert revisions == list(range(1, catalog.state.revision + 1)), "without gap"
    assert told == {key[1:]: decode_row(data).value for key, data in _scan(catalog, b"")}


@given(_histories)
@settings(max_examples=examples(60))
def test_below_its_level_a_command_changes_nothing(commands: list[Command]) -> None:
    """A member with old code meets neither commands nor rows that it does not know."""
    catalog = begin(level=1)
    for command in commands:
        before = dict(catalog.store.rows)
        code = catalog.do(command).result.code
        assert (code == "UNSUPPORTED_COMMAND") is (command.level > 1)
        if command.level > 1:
            same = {key: data for key, data in catalog.store.rows.items() if key != b"mstate"}
            before.pop(b"mstate")
            assert same == before
    for key, data in _scan(catalog, b"\0"):
        assert key.startswith((KEYS + TOPIC_PREFIX, KEYS + NODE_PREFIX))
        if key.startswith(KEYS + TOPIC_PREFIX):
            _, _, partitions = unpack(decode_row(data).value)  # three fields, as of old
            assert all(len(partition) == 5 for partition in partitions)


def test_from_level_two_on_a_topic_knows_its_replication() -> None:
    catalog = begin()
    catalog.do(CreateTopic("t", IDS["t"], 1, 3, {}))
    assert catalog.topic("t").replication == 3
    assert catalog.value(topic_key("t")) is not None


class CatalogModel(RuleBasedStateMachine):
    """Keys, ids and retries beside dicts."""

    @initialize()
    def begin(self) -> None:
        self.catalog = begin()
        self.client = b"c" * 16
        self.catalog.do(OpenSession(self.client))
        self.sequence = 0
        self.answers: dict[int, tuple[Command, Any]] = {}
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.next_id = 0

    def _do(self, command: Command) -> Any:
        self.sequence += 1
        result = self.catalog.do(command, Header(self.client, self.sequence, 0)).result
        self.answers[self.sequence] = (command, result)
        return result

    @rule(key=_keys, value=st.none() | st.binary(max_size=2), expected=st.none() | st.booleans())
    def write(self, key: bytes, value: bytes | None, expected: bool | None) -> None:
        revision = self.values.get(key, (b"", 0))[1]
        compares = () if expected is None else ((key, revision if expected else revision + 1),)
        result = self._do(Txn(compares, ((key, value, 0),)))
        assert result.payload[0] is (expected is not False)
        if expected is False:
            return
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = (value, result.revision)

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        assert self._do(AllocateIds("p", count)).payload == self.next_id
        self.next_id += count

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """Whatever is sent again answers as before and does nothing."""
        if not self.answers:
            return
        sequence = data.draw(st.sampled_from(sorted(self.answers)))
        command, answer = self.answers[sequence]
        again = self.catalog.do(command, Header(self.client, sequence, 0))
        assert _plain(again.result) == _plain(answer)
        assert again.rows == []

    @invariant()
    def is_alike(self) -> None:
        rows = {k[1:]: decode_row(d) for k, d in _scan(self.catalog, b"") if k[1:2] != b"\0"}
        assert {key: (row.value, row.mod_revision) for key, row in rows.items()} == self.values


def _plain(result: Any) -> Any:
    code, revision, payload = result
    return code, revision, list(payload) if isinstance(payload, tuple) else payload


TestCatalogModel = CatalogModel.TestCase
TestCatalogModel.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
