"""What the commands of every package share: options, output, exit codes."""

from lakemq.broker_core.api.command_line.options import (
    NAMES_MAX,
    AdminOptions,
    BrokerOptions,
    MetaOptions,
    Yes,
    option_groups,
    secret,
    words,
)
from lakemq.broker_core.api.command_line.output import (
    ExitCode,
    confirm,
    fail,
    is_json,
    print_json,
    print_table,
    progress,
    say,
)
from lakemq.broker_core.api.command_line.times import clock, duration, time_ms

__all__ = [
    "NAMES_MAX",
    "AdminOptions",
    "BrokerOptions",
    "ExitCode",
    "MetaOptions",
    "Yes",
    "clock",
    "confirm",
    "duration",
    "fail",
    "is_json",
    "option_groups",
    "print_json",
    "print_table",
    "progress",
    "say",
    "secret",
    "time_ms",
    "words",
]
