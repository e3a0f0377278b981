"""What every test may use: engines, stores and a whole gateway in this process, on real sockets."""

pytest_plugins = ["tests.engines", "tests.llamacpp", "tests.doors"]
