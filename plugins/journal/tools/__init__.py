"""`lakemq journal`: offline tools for a data folder."""
