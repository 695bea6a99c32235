"""Runs at the start of Python: takes away what it has on Linux and not on macOS."""

import os
import socket

for _name in ("fdatasync", "eventfd", "eventfd_read", "eventfd_write", "sched_getaffinity"):
    delattr(os, _name)
for _name in ("AF_NETLINK", "SOCK_CLOEXEC", "SOCK_NONBLOCK"):
    delattr(socket, _name)
