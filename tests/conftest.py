"""Settings that all tests share.

Hypothesis draws the same examples in each run, so that a change fails for what it changed; with
`LAKEMQ_FIRST_SEED` (`make nightly`) it draws other ones each time, and says how to repeat them.
"""

import os

from hypothesis import HealthCheck, settings

from tests.support.platforms.compiled import skip_what_replaces_compiled_code
from tests.support.seeds import FIRST, examples

# How fast examples are made says something about the machine, not about the code.
settings.register_profile(
    "lakemq",
    deadline=None,
    derandomize=FIRST not in os.environ,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lakemq")

# PySpark forks to start the JVM; gRPC's own threads in that child may end it before it has begun.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Tests use a JVM for seconds, in which its second compiler costs half of all its time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

skip_what_replaces_compiled_code()
