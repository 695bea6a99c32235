"""What operators do, for the command line and the admin API alike."""
