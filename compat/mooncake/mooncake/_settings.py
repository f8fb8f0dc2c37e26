"""What Mooncake's environment variables and connection strings mean here.

Read once per TransferEngine.initialize, MC_TRANSFER_TIMEOUT once per TransferEngine():

    MC_TRANSFER_TIMEOUT         seconds of a transfer, before 1 ns per byte; 5 at least, default 30
    MC_FORCE_TCP                1: TCP also between processes of one host
    MC_LEGACY_RPC_PORT_BINDING  set: the port in local_hostname is bound, or initialize fails
    MC_HANDSHAKE_PORT           that port where local_hostname has none (12001)
    MC_MIN_RPC_PORT, MC_MAX_RPC_PORT  set: a port of this range is bound; else the kernel picks one
    MC_TCP_BIND_ADDRESS         the host that peers are told, instead of local_hostname's
    MC_METADATA_CLUSTER_ID      prefix of names in the registry
    MC_LOG_LEVEL                TRACE, INFO, WARNING or ERROR
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

P2P = "P2PHANDSHAKE"
_DEFAULT_TIMEOUT_SECONDS = 30
_SHORTEST_TIMEOUT_SECONDS = 5
_HANDSHAKE_PORT = 12001
_RPC_PORTS = (15000, 17000)
_PORT_TRIES = 500
_LOG_LEVELS = {"TRACE": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"}


def variable_is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false", "off")


def number(name: str, default: int) -> int:
    """Like atoi: leading digits count, anything else is 0; unset is the default."""
    text = os.environ.get(name)
    if text is None:
        return default
    match = re.match(r"\s*[+-]?\d+", text)
    return int(match.group()) if match else 0


def transfer_timeout_seconds() -> int:
    return max(number("MC_TRANSFER_TIMEOUT", _DEFAULT_TIMEOUT_SECONDS), _SHORTEST_TIMEOUT_SECONDS)


def log_level() -> str | None:
    return _LOG_LEVELS.get(os.environ.get("MC_LOG_LEVEL", "").upper())


def split_host_port(text: str) -> tuple[str, int | None]:
    """("10.0.0.1", 1234) for "10.0.0.1:1234"; IPv6 may be bare or bracketed; no port is None.

    Raises ValueError when what follows the host is no port.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"local_hostname {text!r} has an unclosed bracket")
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not port:
        return host, None
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"local_hostname {text!r} has no port of 0 .. 65535 behind its colon")
    return host, int(port)


@dataclass(frozen=True)
class Metadata:
    """Where peers are looked up. `registry` None: peers are found at host:port."""

    registry: str | None


def parse_metadata(server: str, kind: str | None = None) -> Metadata:
    """Raises ValueError for what this build does not speak."""
    if server == P2P or kind == P2P:
        return Metadata(None)
    if "://" not in server:
        server = f"{kind or 'etcd'}://{server}"
    scheme = server.partition("://")[0]
    if scheme == "http":
        return Metadata(server)
    raise ValueError(
        f"metadata server {server!r}: {scheme} is not available; use {P2P} or http://host:port"
    )


def listen_addresses(port_wanted: int | None) -> Iterator[str]:
    """What to try to listen on, in this order."""
    if variable_is_on("MC_LEGACY_RPC_PORT_BINDING"):
        yield f":{number('MC_HANDSHAKE_PORT', _HANDSHAKE_PORT) if port_wanted is None else port_wanted}"
        return
    names = ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT", "MC_MIN_PRC_PORT", "MC_MAX_PRC_PORT")
    if not any(name in os.environ for name in names):
        yield ":0"
        return
    low = number("MC_MIN_RPC_PORT", number("MC_MIN_PRC_PORT", _RPC_PORTS[0]))
    high = number("MC_MAX_RPC_PORT", number("MC_MAX_PRC_PORT", _RPC_PORTS[1]))
    if not 1 <= low <= high <= 65535:
        raise ValueError(
            f"MC_MIN_RPC_PORT .. MC_MAX_RPC_PORT: {low} .. {high} is no range of ports"
        )
    ports = range(low, high + 1)
    for port in random.sample(ports, min(len(ports), _PORT_TRIES)):
        yield f":{port}"
