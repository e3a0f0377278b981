"""The operator listener: /metrics, /livez, /readyz."""
