"""What each node of a cluster subscribes to, as the others know it."""
