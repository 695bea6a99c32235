"""What plugins of different nodes say to each other."""
