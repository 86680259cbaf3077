"""Moves messages between parties, and checks each one before anybody computes with it."""

from tpsl.transport import quiet as quiet  # before anything imports gRPC
