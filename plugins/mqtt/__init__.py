"""MQTT 3.1.1 and 5.0: a sans-IO core (`wire`, `session`, `routing`), its state in internal topics
(`state`), and the sockets, WebSockets and TLS around it (`server`).
"""
