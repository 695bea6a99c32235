"""Which hosts are this machine: what plugins may do without TLS or a login depends on it."""

from urllib.parse import urlsplit

from lakemq.meta_service.api.hosts import is_loopback as is_loopback
from lakemq.meta_service.api.hosts import join_host as join_host


def is_protected(url: str) -> bool:
    """Whether no third party can read or change what is fetched from a URL, or sent to it: it is
    https, or http on this machine."""
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    except ValueError:
        return False
    return bool(host) and (scheme == "https" or (scheme == "http" and is_loopback(str(host))))
