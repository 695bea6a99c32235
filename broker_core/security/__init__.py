"""Who is it, and may they: mechanisms, rules and quotas of every protocol."""
