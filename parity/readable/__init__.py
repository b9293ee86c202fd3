"""Reports for a reader: what they say (``document``), as one HTML file (``html``) and as Markdown (``markdown``)."""
