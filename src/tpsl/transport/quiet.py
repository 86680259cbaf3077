"""Keeps gRPC's core from writing to stderr: what goes wrong reaches the user as one sentence of ours.

Imported before gRPC, which looks at this only once. Who wants to see it sets GRPC_VERBOSITY.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
