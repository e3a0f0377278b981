"""What tests of processes may use besides: `gateway` commands as processes."""

from tests.processes import processes

__all__ = ["processes"]
