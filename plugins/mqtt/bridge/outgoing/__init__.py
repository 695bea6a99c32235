"""Records on their way to a remote broker."""
