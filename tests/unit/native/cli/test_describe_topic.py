"""Goal: `topic describe` shows replicas where there are any, and nothing of them where not."""

import pytest

from lakemq.plugins.native.cli.commands import _print_partitions
from lakemq.plugins.native.sdk import PartitionOffsets, TopicOffsets


def lines(capsys: pytest.CaptureFixture[str], *partitions: PartitionOffsets) -> list[list[str]]:
    _print_partitions(TopicOffsets("t", "0" * 32, partitions, {}))
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_replicas_and_how_far_they_are_behind(capsys: pytest.CaptureFixture[str]) -> None:
    first = PartitionOffsets(
        0, 0, 5, 900, "online", 7, 1, "", "n1", 3, "", ("n1", "n2", "n3"), ("n1", "n2"), ("n3",),
        lags={"n2": 0, "n3": 1200},
    )  # fmt: skip
    second = PartitionOffsets(1, 0, 0, 0, "remote", detail="no node leads it", leader_epoch=2)
    heading, one, two = lines(capsys, first, second)
    assert " ".join(heading).startswith("partition state leader epoch replicas in sync eligible")
    assert " ".join(one) == "0 online n1 3 n1 n2 n3 n1 n2 n3 n3:1,200 0 5 7 1 900"
    assert " ".join(two) == "1 remote - 2 - - - - 0 0 0 0 0 no node leads it"


def test_one_replica_takes_no_columns(capsys: pytest.CaptureFixture[str]) -> None:
    heading, row = lines(capsys, PartitionOffsets(0, 0, 5, 9, leader="n1", replicas=("n1",)))
    assert "replicas" not in heading and "behind" not in heading
    assert row == ["0", "online", "n1", "0", "0", "5", "0", "0", "9"]
