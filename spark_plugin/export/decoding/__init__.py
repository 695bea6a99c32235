"""From record values to columns."""
