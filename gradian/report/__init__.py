"""One typed report and its renderers."""
