"""Moves messages between parties, and checks each one before anybody computes with it."""

import os

# gRPC's core looks at this when it is imported, and would write to stderr: what goes wrong reaches the user as one
# sentence of ours. Who wants to see it sets GRPC_VERBOSITY.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
