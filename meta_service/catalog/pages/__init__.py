"""Partitions in pages, from feature level 4 on: rows, counters, and commands that change them."""
