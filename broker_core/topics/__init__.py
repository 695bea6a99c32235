"""Making and changing topics, those of users and those that all nodes share."""
