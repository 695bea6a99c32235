"""The journal: a segmented, columnar, crash-safe log as LakeMQ's storage engine."""
