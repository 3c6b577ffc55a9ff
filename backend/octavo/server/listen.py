"""The socket the server listens on."""

from __future__ import annotations

import os
import socket

from octavo.errors import ConfigError

_BACKLOG = 2048


def listen(host: str, port: int, prefix: str = "") -> socket.socket:
    """A listening socket. Raises ConfigError, naming the options `prefix`host and `prefix`port, if it cannot be had."""
    flag = "--" + prefix.replace("_", "-")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}: {error.strerror}; choose another with {flag}host", f"{prefix}host"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another with {flag}port", f"{prefix}port"
        ) from None
    return listener
