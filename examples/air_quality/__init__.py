"""Air quality: the whole road on real data."""
