"""An example plugin of LakeMQ: a line protocol over TCP."""
