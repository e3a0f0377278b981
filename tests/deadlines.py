"""How long tests wait for what they expect. Nothing that passes takes it, but machines that are busy need some."""

DEADLINE_S = 20.0

# What is to come at once, and not when some time limit of the config has passed: those are longer. What "at once" is in
# milliseconds is measured where nothing else runs (test_promptness.py).
PROMPTLY_S = 3.0

# What the first call pays for a store that is away: tests wait for it, and a store of a busy machine may need a second.
STORE_TIMEOUT_S = 1.5
