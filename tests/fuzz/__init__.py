"""Hostile bytes: each reader of bytes that others wrote, fed with what none should write."""
