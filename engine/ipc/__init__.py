"""Private messages and sockets between the engine's own processes."""
