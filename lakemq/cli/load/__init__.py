"""A quick load of the user's own broker."""
