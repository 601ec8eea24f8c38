"""Run folders: what a training run leaves behind, as one normalised record."""
