"""The choice of an arithmetic for a whole model over a backend's operations."""


class Arithmetic:
    """A backend whose attention keeps to one arithmetic, whatever the switch QSA_ARITHMETIC says.

    ``backend``: a module with the five operations; ``name``: ``exact`` or ``float``; ``layers``: the namespace of
    layers, the backend's own unless given. Everything else is the backend's.
    """

    def __init__(self, backend, name, layers=None):
        self._backend, self.arithmetic = backend, name
        self.layers = backend.layers if layers is None else layers

    def __getattr__(self, name):
        if name == "_backend":  # a copy asks for it before it has it
            raise AttributeError(name)
        return getattr(self._backend, name)

    def attend(self, *arguments, **keywords):
        """The backend's ``attend`` in this arithmetic."""
        return self._backend.attend(*arguments, arithmetic=self.arithmetic, **keywords)
