"""The simulated engine: vLLM's wire format without a model, for trials, load tests and the tests of this project."""
