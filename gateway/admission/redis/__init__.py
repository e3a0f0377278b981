"""The shared store of counts: a server that speaks Redis' protocol, and the scripts that count in it."""
