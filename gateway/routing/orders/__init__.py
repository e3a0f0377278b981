"""What operators order of replicas at runtime: read, kept, shown, and followed by the pools."""
