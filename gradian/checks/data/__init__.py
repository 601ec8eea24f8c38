"""Checks of the training rows, one file each."""
