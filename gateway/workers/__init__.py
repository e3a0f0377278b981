"""Several processes as one gateway: who starts and ends them, and one operator listener for all."""
