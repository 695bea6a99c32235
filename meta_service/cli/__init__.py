"""`lakemq meta`: commands that inspect and operate the MetaService."""
