"""LakeMQ's own plugins: one folder a plugin, found through the entry points `lakemq.plugins`."""
