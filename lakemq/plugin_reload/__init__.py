"""New code of a plugin in a node that goes on running."""
