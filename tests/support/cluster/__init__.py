"""Load on clusters of real processes."""
