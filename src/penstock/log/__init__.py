"""The crash-safe log. What users need of it is in :mod:`penstock` itself."""
