"""Checks of the training settings, one file each."""
