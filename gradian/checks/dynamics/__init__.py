"""Checks of the trainer's log, one file each."""
