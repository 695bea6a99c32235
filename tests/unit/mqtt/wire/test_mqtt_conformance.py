"""Goal: no normative statement is forgotten, and the published table tells the truth."""

from __future__ import annotations

from tests.support.mqtt.conformance import PAGE, VERSIONS, citations, cited, page, statements


def test_only_real_statements_are_cited() -> None:
    known = {version: statements(version) for version in VERSIONS}
    unknown = [each for each in citations() if each[1] not in known[each[0]]]
    assert unknown == []


def test_every_statement_has_a_test_or_a_reason() -> None:
    for version, rows in cited().items():
        missing = [
            f"{version} {row.label}: {row.summary}"
            for row in rows.values()
            if not row.tests and not row.untested_because
        ]
        assert missing == []


def test_a_reason_is_given_only_where_there_is_no_test() -> None:
    both = [
        f"{version} {row.label}"
        for version, rows in cited().items()
        for row in rows.values()
        if row.tests and row.untested_because
    ]
    assert both == []


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "python -m tests.support.mqtt.conformance --write"
