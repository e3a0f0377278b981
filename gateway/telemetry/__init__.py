"""Outcome -> Prometheus and the access log."""
