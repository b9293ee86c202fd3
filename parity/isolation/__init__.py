"""A backend in a process of its own: a crash or a hang is one failed case, and the verdict is out of its reach.

Truth, comparison and goldens stay in the judge's process. The child gets arrays and plain values, without seed or case,
and gives bytes back. What it sends is read as data: nothing of it is executed.
"""

from .remote import BackendDiedError, BackendError, RemoteKernel

__all__ = ["BackendDiedError", "BackendError", "RemoteKernel"]
