"""How the parties ask and answer each other: one service of unary calls, over gRPC with mutual TLS or in one process."""
