"""Rows to tokens with a loss mask."""
