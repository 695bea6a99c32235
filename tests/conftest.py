"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# How fast examples are made says something about the machine, not about the code.
settings.register_profile("lakemq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakemq")
