"""Where a message is: its way, station by station."""
