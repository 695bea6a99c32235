"""Types and port of consumer groups."""
