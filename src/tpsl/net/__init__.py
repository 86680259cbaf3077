"""How the parties ask and answer each other: unary calls over gRPC with mutual TLS, or in one process."""

import os

# gRPC's core looks at this when it is imported, and would write to stderr: what goes wrong reaches the user as one
# sentence of this program. Set GRPC_VERBOSITY to see it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
