"""Commands of `lakemq` that ask the admin API."""
