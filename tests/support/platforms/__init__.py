"""What other systems lack, taken away: folders for PYTHONPATH."""
