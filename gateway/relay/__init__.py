"""The engine's bytes to the client: upstream connections, the SSE scanner, honest endings."""
