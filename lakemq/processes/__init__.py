"""Several processes of one node: `lakemq start --processes N`."""
