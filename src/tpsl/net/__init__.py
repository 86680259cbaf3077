"""How the parties ask and answer each other: unary calls over gRPC with mutual TLS, or in one process."""
