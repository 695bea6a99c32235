"""Goal: staged batches through the SDK against a real node: nobody sees them before the commit that
names them, then everybody sees each once; losers, older epochs and batch ids count for nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import lakemq
from lakemq import CommitOutcome, StagedWinner
from tests.support.node.node import PORTS_FREE, NodeProcess

pytestmark = pytest.mark.partitions(3)

SMALL = PORTS_FREE + "[transactions]\nowner_max_bytes = 1048576\nsink_timeout_ms = 60000\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("staging"), SMALL) as node:
        yield node


def columns(*values: bytes) -> lakemq.Columns:
    return lakemq.Columns(list(values))


def stage(
    client: lakemq.SyncClient,
    session: lakemq.SinkHandle,
    batch_id: int,
    task: int,
    topic: str,
    *values: bytes,
    attempt: int = 0,
) -> StagedWinner:
    """One batch of each value, to the partition of the task."""
    with client.staging.writer(session, batch_id, task, attempt) as writer:
        for value in values:
            writer.send_batch(topic, columns(value), partition=task % 3)
        return writer.finish()


def values(client: lakemq.SyncClient, topic: str) -> list[bytes]:
    return [record.value or b"" for record in client.consume(topic)]


def test_nobody_sees_what_is_staged_before_it_is_committed(
    client: lakemq.SyncClient, topic: str
) -> None:
    session = client.staging.open_sink(topic)
    assert session.last_batch_id == -1
    winners = [stage(client, session, 7, task, topic, b"%d" % task) for task in range(3)]
    assert values(client, topic) == []
    result = client.staging.commit(session, 7, winners)
    assert result == (CommitOutcome.COMMITTED, 7, True)
    assert values(client, topic) == [b"0", b"1", b"2"]


def test_losers_of_a_task_never_appear(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    stage(client, session, 0, 0, topic, b"loser")
    winner = stage(client, session, 0, 0, topic, b"winner", attempt=1)
    client.staging.commit(session, 0, [winner])
    assert values(client, topic) == [b"winner"]


def test_repeated_and_older_commits_are_told_so(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    winner = stage(client, session, 5, 0, topic, b"x")
    client.staging.commit(session, 5, [winner])
    again = client.staging.commit(session, 5, [winner])
    assert (again.outcome, again.applied) == (CommitOutcome.ALREADY_COMMITTED, True)
    older = client.staging.commit(session, 4, [])
    assert (older.outcome, older.last_batch_id) == (CommitOutcome.OLDER, 5)
    with pytest.raises(lakemq.BatchCommitted, match="batch 5"):
        stage(client, session, 5, 1, topic, b"late")
    assert values(client, topic) == [b"x"]
    assert client.staging.open_sink(topic).last_batch_id == 5


def test_a_newer_driver_fences_the_older_one(client: lakemq.SyncClient, topic: str) -> None:
    old = client.staging.open_sink(topic)
    winner = stage(client, old, 0, 0, topic, b"old")
    new = client.staging.open_sink(topic)
    assert new.epoch > old.epoch
    with pytest.raises(lakemq.ProducerFenced, match=f"sink {topic}"):
        client.staging.commit(old, 0, [winner])
    with pytest.raises(lakemq.ProducerFenced):
        stage(client, old, 1, 0, topic, b"old")
    with pytest.raises(lakemq.TransactionAborted):
        client.staging.commit(new, 0, [winner])
    client.staging.commit(new, 0, [stage(client, new, 0, 0, topic, b"new")])
    assert values(client, topic) == [b"new"]


def test_an_attempt_that_is_not_whole_is_not_committed(
    client: lakemq.SyncClient, topic: str
) -> None:
    session = client.staging.open_sink(topic)
    winner = stage(client, session, 0, 0, topic, b"a", b"b")
    for batches in (1, 3):
        with pytest.raises(lakemq.TransactionAborted, match="2 batches staged"):
            client.staging.commit(session, 0, [winner._replace(batches=batches)])
    client.staging.abort(session, 0)
    with pytest.raises(lakemq.TransactionAborted, match="0 batches staged"):
        client.staging.commit(session, 0, [winner])
    assert values(client, topic) == []


def test_empty_commits_count(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    assert client.staging.commit(session, 3, []).outcome is CommitOutcome.COMMITTED
    assert client.staging.open_sink(topic).last_batch_id == 3


def test_many_batches_to_one_partition_keep_their_order(
    client: lakemq.SyncClient, topic: str
) -> None:
    session = client.staging.open_sink(topic)
    with client.staging.writer(session, 0, 0) as writer:
        for number in range(300):
            writer.send_batch(topic, columns(b"%d" % number), partition=1)
        winner = writer.finish()
    assert (winner.batches, winner.records) == (300, 300)
    client.staging.commit(session, 0, [winner])
    assert values(client, topic) == [b"%d" % number for number in range(300)]


def test_single_records_are_gathered_by_key(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    with client.staging.writer(session, 0, 0) as writer:
        for number in range(50):
            writer.send(topic, b"%d" % number, key=b"k%d" % (number % 5), timestamp_ms=number)
        winner = writer.finish()
    assert winner.batches <= 3
    client.staging.commit(session, 0, [winner])
    found = list(client.consume(topic))
    assert sorted(int(each.value or b"") for each in found) == list(range(50))
    for key in {each.key for each in found}:
        times = [each.timestamp_ms for each in found if each.key == key]
        assert times == sorted(times)


def test_too_much_is_refused_and_room_comes_back(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    big = columns(b"x" * 600_000)
    with (
        lakemq.connect(client.bootstrap, timeout_s=0.5) as hasty,
        hasty.staging.writer(session, 0, 0) as writer,
    ):
        writer.send_batch(topic, big, partition=0)
        with pytest.raises(lakemq.StagingFull, match="the limit is 1048576"):
            for _ in range(3):
                writer.send_batch(topic, big, partition=0)
            writer.finish()
    client.staging.abort(session, 0)
    with client.staging.writer(session, 1, 0) as writer:
        writer.send_batch(topic, big, partition=0)
        winner = writer.finish()
    client.staging.commit(session, 1, [winner])
    assert len(values(client, topic)) == 1


def test_wrong_requests_are_refused_by_name(client: lakemq.SyncClient, topic: str) -> None:
    with pytest.raises(lakemq.InvalidRequest, match="printable"):
        client.staging.open_sink("")
    with pytest.raises(lakemq.InvalidRequest, match="timeout_ms is 1"):
        client.staging.open_sink(topic, timeout_ms=1)
    nobody = lakemq.SinkHandle("sink", "nobody", 1, -1)
    with pytest.raises(lakemq.UnknownTransaction, match="unknown sink nobody"):
        client.staging.commit(nobody, 0, [])
    session = client.staging.open_sink(topic)
    with pytest.raises(lakemq.InvalidRequest, match="batch_id is -1"):
        client.staging.commit(session, -1, [])
    with pytest.raises(lakemq.InvalidRequest, match="task 1 has two winners"):
        client.staging.commit(session, 0, [StagedWinner(1, 0, 0, 0), StagedWinner(1, 1, 0, 0)])
    with pytest.raises(lakemq.UnknownTopic):
        stage(client, session, 0, 0, "nowhere", b"x")
    with client.staging.writer(session, 0, 0) as writer, pytest.raises(lakemq.NotAuthorized):
        writer.send_batch("_lakemq_staged", columns(b"x"), partition=0)
        writer.finish()


def test_a_topic_that_was_created_again_takes_no_old_batches(
    client: lakemq.SyncClient, topic: str
) -> None:
    session = client.staging.open_sink(topic)
    winner = stage(client, session, 0, 0, topic, b"x")
    client.delete_topic(topic)
    with pytest.raises(lakemq.UnknownTopic):
        client.staging.commit(session, 0, [winner])
    client.create_topic(topic, partitions=3)
    with pytest.raises(lakemq.UnknownTopic, match="created again"):
        client.staging.commit(session, 0, [winner])


def test_owners_are_listed_fenced_and_forgotten(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    stage(client, session, 0, 0, topic, b"x")
    (found,) = [each for each in client.staging.owners() if each.name == topic]
    assert (found.kind, found.state, found.staged_batches) == ("sink", "staging", 1)
    client.staging.fence("sink", topic)
    (found,) = [each for each in client.staging.owners() if each.name == topic]
    assert (found.state, found.staged_batches, found.epoch) == ("idle", 0, session.epoch + 1)
    client.staging.delete("sink", topic)
    assert topic not in [each.name for each in client.staging.owners()]
    with pytest.raises(lakemq.UnknownTransaction):
        client.staging.delete("sink", topic)


def test_nobody_reads_what_is_staged(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    stage(client, session, 0, 0, topic, b"secret")
    with pytest.raises(lakemq.NotAuthorized, match="is internal; only operators"):
        list(client.consume("_lakemq_staged"))
    with (
        client.subscribe("_lakemq_staged", group=topic) as consumer,
        pytest.raises(lakemq.NotAuthorized),
    ):
        next(iter(consumer))


def test_arrow_tables_are_staged_whole(client: lakemq.SyncClient, topic: str) -> None:
    pa = pytest.importorskip("pyarrow")
    session = client.staging.open_sink(topic)
    table = pa.table({"value": pa.array([b"a", b"b"], pa.binary())})
    with client.staging.writer(session, 0, 0) as writer:
        writer.send_arrow(topic, table, partition=2)
        winner = writer.finish()
    client.staging.commit(session, 0, [winner])
    assert values(client, topic) == [b"a", b"b"]


def lakemq_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lakemq", "transaction", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_command_lists_aborts_and_forgets(client: lakemq.SyncClient, topic: str) -> None:
    at = ("--bootstrap", client.bootstrap)
    session = client.staging.open_sink(topic)
    client.staging.commit(session, 4, [])
    stage(client, session, 5, 0, topic, b"x")
    listed = lakemq_command("list", *at)
    (line,) = [each for each in listed.stdout.splitlines() if topic in each]
    assert line.split()[:6] == ["sink", topic, "staging", "1", "4", "1"]
    aborted = lakemq_command("abort", "sink", topic, *at)
    assert "fenced" in aborted.stdout
    (found,) = [each for each in client.staging.owners() if each.name == topic]
    assert (found.state, found.epoch) == ("idle", 2)
    assert lakemq_command("delete", "sink", topic, "--yes", *at).returncode == 0
    gone = lakemq_command("abort", "sink", topic, *at)
    assert gone.returncode == 4 and gone.stderr.startswith("lakemq: ")
    wrong = lakemq_command("abort", "thing", topic, *at)
    assert wrong.returncode == 2 and "sink or transaction" in wrong.stderr
