"""What the admin API and those that add to it have in common: routes, lists, the node."""
