"""Where `lakemq user` keeps users."""
