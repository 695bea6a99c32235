"""Hosts and ports as text: which host is this machine, which means every address, how both join."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address is this machine alone, whatever DNS says: `localhost`,
    127.0.0.0/8, ::1, and 127.0.0.0/8 mapped into IPv6. An empty host is not: it listens on every
    address."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # is_loopback looks into it from 3.13 on only
    return (mapped or address).is_loopback


def is_wildcard(host: str) -> bool:
    """Whether a listener on it is reached by every address of the machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def join_host(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
