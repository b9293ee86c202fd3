"""Calls of the model as programs of the backend: windows, draft steps and whole rounds."""
