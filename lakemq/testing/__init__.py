"""What authors of plugins test with: a broker in the test's own event loop, a clock that stands
still, a cluster of real processes, and contract suites for the ports. Install it with
`pip install 'lakemq[testing]'`.

A contract suite is a class to subclass: give the fixtures that it names, and its tests run against
your implementation. Whatever passes behaves as the host and other plugins expect.
"""

try:
    import pytest
    import pytest_asyncio  # noqa: F401  the suites' tests are coroutines
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lakemq.testing needs {error.name}: pip install 'lakemq[testing]'"
    ) from None

pytest.register_assert_rewrite(
    "lakemq.testing.authenticator",
    "lakemq.testing.authorizer",
    "lakemq.testing.cluster",
    "lakemq.testing.interceptor",
    "lakemq.testing.listener",
    "lakemq.testing.reconfigurable",
    "lakemq.testing.replica",
    "lakemq.testing.storage",
)

from lakemq.testing.authenticator import AuthenticatorContract  # noqa: E402  rewritten first
from lakemq.testing.authorizer import AuthorizerContract, Question  # noqa: E402
from lakemq.testing.broker import RunningBroker, plugin_context, running_broker  # noqa: E402
from lakemq.testing.clock import FakeClock  # noqa: E402
from lakemq.testing.cluster import Cluster  # noqa: E402
from lakemq.testing.history import History, Seen  # noqa: E402
from lakemq.testing.interceptor import InterceptorContract  # noqa: E402
from lakemq.testing.listener import ListenerContract, MakeListener  # noqa: E402
from lakemq.testing.reconfigurable import InUse, ReconfigurableContract  # noqa: E402
from lakemq.testing.replica import ReplicaContract  # noqa: E402
from lakemq.testing.storage import MakeStorage, StorageContract  # noqa: E402

__all__ = [
    "AuthenticatorContract", "AuthorizerContract", "Cluster", "FakeClock", "History", "InUse",
    "InterceptorContract", "ListenerContract", "MakeListener", "MakeStorage", "Question",
    "ReconfigurableContract", "ReplicaContract", "RunningBroker", "Seen", "StorageContract",
    "plugin_context", "running_broker",
]  # fmt: skip
