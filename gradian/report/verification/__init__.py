"""What a retraining without the accused rows showed: one typed value and its renderers."""
