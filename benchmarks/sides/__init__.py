"""What is measured: brokers and other programs, on loopback; settings in `configurations`."""
