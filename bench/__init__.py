"""The benchmark: what the gateway costs, side by side with plain proxies. `python -m bench`; docs/performance.md."""
