"""Authorization: rules and HTTP rules."""
