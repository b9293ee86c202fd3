"""A backend bound to one arithmetic, for a whole model."""

from typing import Any


class Arithmetic:
    """A backend whose attention always uses one arithmetic, whatever the switch QSA_ARITHMETIC says.

    backend  a module with the five operations; every other attribute is taken from it
    name     ``exact`` or ``float``
    layers   the namespace of layers; by default the backend's own
    """

    def __init__(self, backend: Any, name: str, layers: Any = None) -> None:
        self._backend, self.arithmetic = backend, name
        self.layers = backend.layers if layers is None else layers

    def __getattr__(self, name: str) -> Any:
        if name == "_backend":  # copy.copy looks it up before it is set
            raise AttributeError(name)
        return getattr(self._backend, name)

    def attend(self, *arguments: Any, **keywords: Any) -> Any:
        """The backend's ``attend`` in this arithmetic."""
        return self._backend.attend(*arguments, arithmetic=self.arithmetic, **keywords)
