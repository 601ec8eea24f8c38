"""The audit's report: one typed value, and its renderers."""
