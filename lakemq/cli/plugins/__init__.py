"""`lakemq plugin`: what plugins there are, and a new one."""
