"""Numeric operations: each module holds a pure-torch reference and the choice of implementation."""
