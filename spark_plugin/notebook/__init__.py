"""What is at hand in a notebook or a script that has a Spark session."""
