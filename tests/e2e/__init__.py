"""Copies from end to end: over a real connection, through the command or the Python API."""
