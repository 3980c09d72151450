"""Copies that are drawn, over real servers, disturbed in every way, and judged by the oracle."""
