"""Finds the replicas of pools while the gateway runs: a file for each kind of source, and one owner of their tasks."""
