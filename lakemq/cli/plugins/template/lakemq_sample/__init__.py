"""A plugin of LakeMQ."""
