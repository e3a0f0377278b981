"""What operators change of plans and rules while gateways run: read, judged, and laid over the config."""
