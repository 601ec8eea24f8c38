"""Influence engines behind one interface."""
