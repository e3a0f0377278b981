"""Authorization header -> Principal. Never sees the body, never decides what the principal may spend."""
