"""An LLM inference gateway: the one door in front of pools of GPU servers."""

__version__ = "0.1.0"
