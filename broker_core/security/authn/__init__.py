"""Authentication: passwords, SCRAM, tokens, certificates, HTTP callbacks."""
