"""Records on their way from the journal to the subscribers of this node."""
