"""Moves messages between parties, and checks each one before anybody computes with it."""

from tpsl.transport.checks import BadMessage, checked_tensor

__all__ = ["BadMessage", "checked_tensor"]
