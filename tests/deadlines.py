"""How long tests wait for what they expect. Nothing that passes takes it, but machines that are busy need some."""

DEADLINE_S = 20.0

# What is to come at once, and not when some time limit of the config has passed: those are longer. What "at once" is in
# milliseconds is measured where nothing else runs (test_promptness.py).
PROMPTLY_S = 3.0
