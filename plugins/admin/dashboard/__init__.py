"""The dashboard: a process of its own, which speaks the admin API and nothing else."""
