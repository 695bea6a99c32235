"""Goal: the line that is named is the line where the setting stands."""

from lakemq.broker_core.configuration.toml_lines import line_of

TEXT = '''\
# comment = 1
top = 1
[a]
x = """
y = 2
"""
z.w = 3
[a."b c"]
q = 1
[[list]]
k = 1
[[list]]
k = 2
'''


def test_keys_tables_and_arrays() -> None:
    assert line_of(TEXT, ("top",)) == 2
    assert line_of(TEXT, ("a",)) == 3
    assert line_of(TEXT, ("a", "x")) == 4
    assert line_of(TEXT, ("a", "z", "w")) == 7
    assert line_of(TEXT, ("a", "b c", "q")) == 9
    assert line_of(TEXT, ("list", 0, "k")) == 11
    assert line_of(TEXT, ("list", 1, "k")) == 13


def test_text_inside_a_string_is_no_key() -> None:
    assert line_of(TEXT, ("a", "y")) == 3


def test_the_nearest_written_parent_stands_for_what_is_not_written() -> None:
    assert line_of(TEXT, ("a", "b c", "absent", "deeper")) == 8
    assert line_of(TEXT, ("absent",)) == 0
