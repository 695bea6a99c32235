"""The cluster on one screen."""
