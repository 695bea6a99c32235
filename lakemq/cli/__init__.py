"""The `lakemq` command."""
