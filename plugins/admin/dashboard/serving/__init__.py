"""The dashboard on the network: connections, their deadlines, and who tries to log in."""
