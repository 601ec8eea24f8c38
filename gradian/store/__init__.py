"""The content-addressed gradient index on disk."""
