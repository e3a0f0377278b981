"""The commands of `gateway`, a module each, imported when its command is asked for."""
