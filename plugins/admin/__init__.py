"""The admin API: HTTP for operators, for the whole cluster from any node."""
