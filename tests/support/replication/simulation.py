"""A partition on some brokers, from one seed: clients, a controller, and what harms them."""

from __future__ import annotations

from tests.support.replication.cluster import SimulatedCluster
from tests.support.replication.harm import EVERY_S, Harm


class Simulation(SimulatedCluster):
    """One seed."""

    def run(self, seconds: float = 5.0) -> None:
        """Raises AssertionError, with the seed, when an invariant does not hold."""
        try:
            self.begin()
            self.every(EVERY_S, Harm(self))
            self.world.run_for(seconds)
            self.end()
        except AssertionError as error:
            raise AssertionError(f"LAKEMQ_SEED={self.seed} repeats this: {error}") from error
