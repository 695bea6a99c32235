"""The clocks of the engine, in a module that is never compiled: simulations replace them."""

from time import monotonic_ns as monotonic_ns
from time import time_ns as time_ns
