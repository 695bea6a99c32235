"""MQTT state in internal topics: sessions, retained messages, bans."""
