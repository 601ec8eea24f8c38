"""Deterministic checks and the findings they make."""
