"""`lakemq export` and `lakemq table`."""
