"""Programs that show LakeMQ at work; not part of the distribution."""
