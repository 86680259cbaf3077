"""What one side does in one step: pure computation, no sockets, no files."""
