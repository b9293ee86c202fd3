"""Sentinels: kernels whose verdict is known, each with its case and what the suite must say about it.

A sentinel states the status of the case, and for one comparison the share of the bound: in a range around 0.8 where it
must pass and around 1.2 where it must fail. A bound that has moved gives another share, whatever the verdict.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ... import suite
from ...backend import Backend
from ...isolation import RemoteKernel
from ..patching import FoundError
from .kernels import backend

ATTEND = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=2,tail=3,seed=1"
ROWS = "accuracy:op=attend,format=int8,scores=peaked,context=60,rows=8,tail=3,seed=1"
OWN = "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1"
PAGES = "pages:op=attend,format=int8,page={page},order=shuffled,missing={missing},context=300,tail=2,seed=2"
SPLIT = "split:op=attend,schedule=split,splits=2,format=int8,context=60,rows=2,tail=2,seed=1"
STEP = "split:op=attend,schedule=step,splits=1,format=int8,context=60,rows=2,tail=2,seed=1"
GATED = "accuracy:op=gated,format=int8,context=60,rows=1,tail=3,seed=8"
CORNERS = "accuracy:op=corners,format=int8,rows=3,seed=7"
SCORES = "accuracy:op=block_scores,context=64,rows=2,tail=2,seed=6"
SPECIAL = "accuracy:op=score_corners,rows=2,seed=10"
KEYS = "accuracy:op=append_index,context=66,seed=5"
STORED = "accuracy:op=append_kv,format=int8,rows=16,seed=4"
OWN_STORED = "accuracy:op=append_kv,format=own,rows=16,seed=4"
SELECT = "selection:op=select,rule=blocks,scores=levels,context=8192,rows=2,tail=3,seed=2"
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
GOLDEN = "select:rule=blocks,scores=continuous,context=1024,rows=1,tail=0,seed=7"


class Sentinel(NamedTuple):
    """A kernel, a case, and the verdict.

    status  of the case
    share   (name of a comparison, least share, largest share), or None
    words   parts of the report
    """

    make: Callable[[], Backend]
    case: str
    status: str
    share: tuple[str, float, float] | None = None
    words: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises FoundError when the suite says something else."""
        judged = self.make()
        result = suite.run_case(suite.parse(self.case), judged)
        report = "\n".join(result.lines(None, verbose=True))
        if isinstance(judged.kernel, RemoteKernel):
            judged.kernel.close()
        if result.status != self.status:
            raise FoundError(f"{self.case}: must be {self.status}, is {result.status}: {report[:200]}")
        for word in self.words:
            if word not in report:
                raise FoundError(f"{self.case}: the report must have {word!r}: {report[:200]}")
        if self.share is not None:
            name, least, largest = self.share
            shares = [comparison.share for comparison in result.comparisons if comparison.name.startswith(name)]
            if not shares or not least <= max(shares) <= largest:
                found = f"{max(shares):.4g}" if shares else "nothing"
                raise FoundError(f"{self.case}: {name}: share of the bound from {least} to {largest}, is {found}")


PASSED, FAILED, UNSUPPORTED = "passed", "failed", "unsupported"
KERNEL, LITTLE, MUCH = "attend: kernel", (0.77, 0.83), (1.17, 1.23)


def float_sentinel(
    case: str, status: str, share: Any = None, *words: str, declaration: Any = None, **functions: Any
) -> Sentinel:
    return Sentinel(partial(backend, "float", declaration, **functions), case, status, share, words)


def exact_sentinel(case: str, status: str, share: Any = None, *words: str, **functions: Any) -> Sentinel:
    return Sentinel(partial(backend, "exact", **functions), case, status, share, words)


def remote_sentinel(name: str, case: str, status: str, *words: str) -> Sentinel:
    def make() -> Backend:
        path = f"{importlib.import_module('.isolated_kernels', __package__).__name__}:{name}"
        return Backend(path, None, RemoteKernel(path, 5.0))

    return Sentinel(make, case, status, None, words)
