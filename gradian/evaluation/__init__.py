"""What the capability was and what it became."""
