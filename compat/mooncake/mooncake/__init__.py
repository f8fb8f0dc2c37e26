"""Mooncake's Python interface, on Moonpool. `mooncake.engine` has the transfer engine."""

__version__ = "0.1.0"
