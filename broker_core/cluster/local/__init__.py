"""Streams between the processes of one node, over Unix sockets."""
