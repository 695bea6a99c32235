"""Three nodes, one of which is killed while devices publish."""
