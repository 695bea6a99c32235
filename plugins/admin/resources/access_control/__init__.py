"""Who may do what, and who did: users, rules, quotas, API keys, the audit log."""
