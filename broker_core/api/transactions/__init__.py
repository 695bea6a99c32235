"""Types and ports of transactions."""
