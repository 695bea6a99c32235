"""Goal: a node does not run from files of two versions, nor where it can't."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from lakemq import installation
from lakemq.broker_core.api.errors import StartupError
from lakemq.installation import check_installation


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        ({"lakemq": "1.2.0"}, True),
        ({"lakemq": "1.2.0", "lakemq-client": "1.2.0"}, True),
        ({"lakemq-client": "1.2.0"}, True),
        ({}, True),
        ({"lakemq": "1.2.0", "lakemq-client": "1.1.0"}, False),
    ],
    ids=["whole", "both", "client", "checkout", "mixed"],
)
def test_both_distributions_are_of_one_version(
    installed: dict[str, str], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(installation, "version", version)
    if fits:
        check_installation()
    else:
        with pytest.raises(StartupError, match=r"lakemq 1\.2\.0 and lakemq-client 1\.1\.0 .*==1"):
            check_installation()
