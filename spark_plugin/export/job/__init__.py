"""The export job: planning, tasks, commits."""
