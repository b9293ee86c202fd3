"""One process's times of anybody's kernel: ``python -P -m qsa.parity.speed.kernel_times --tree FOLDER --backend FILE``.

A case is one of ``qsa parity``: it is checked first, with the calls that its check makes kept, and the last call of the
operation is then timed on the arguments that it had. So a time is always of a right result, and of inputs as the
backend declares them. The report has the parts of that of ``measure.py``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from qsa.reference.geometry import REAL

from .. import suite
from ..backend import Backend
from ..contract import Kernel, declared, load
from ..running.watch import is_source
from .measure import SAMPLE_SECONDS, SECONDS, WRONG, lower_quartile, throttle_counts

MODULES = ("accuracy", "selection")

TIMED = {
    "attend": ("attend",),
    "gated": ("attend_gated",),
    "sparse_attention": ("sparse_attention",),
    "block_scores": ("block_scores",),
    "select": ("select",),
    "append_kv": ("append_kv", "append"),
    "append_index": ("append_index", "index_append"),
}
"""Operation of a case -> the functions of a backend that carry it out: the last call of one of them is timed."""

OF_SELECTED = ("attend", "gated")
"""Operations of cases whose work is by the cells that a row selects."""

ORDINARY = ("ordinary", "continuous", None)
"""Scores of the cases that are timed: kernels on them do what they do in use."""

LARGEST_CONTEXT = 65536
"""Cells of the longest context that is timed: every process makes its truth anew."""


class Recording(Kernel):
    """A kernel that keeps the calls that were made: function, arguments as the backend had them, keywords."""

    def __init__(self, module: Any, declaration: Any) -> None:
        super().__init__(module, declaration)
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    def call(
        self, name: str, arguments: dict[str, Any], keywords: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As ``Kernel.call``."""
        result, moved = super().call(name, arguments, keywords)
        self.calls.append((name, moved, keywords or {}))
        return result, moved


def timed_cases(backend: Backend) -> list[str]:
    """Case strings: of each operation that is timed, in each format and rule, the ordinary one of most work."""
    found: dict[tuple[Any, ...], tuple[int, str]] = {}
    rules = backend.declaration.rules
    for case in suite.collect(MODULES, backend.arithmetic, backend=backend):
        given = case.recipe
        context = given.get("context", 0)
        functions = TIMED.get(given["op"], ())
        offered = any(map(backend.has, functions)) and given.get("rule", rules[0]) in rules
        if not offered or given.get("scores") not in ORDINARY or context > LARGEST_CONTEXT:
            continue
        key = given["op"], given.get("format"), given.get("rule")
        # A row of attention reads its selected cells, however long the context is.
        cells = min(context, REAL.max_width) if given["op"] in OF_SELECTED else context
        work = (cells + 1) * given.get("rows", 1)
        if work > found.get(key, (0, ""))[0]:
            found[key] = work, case.text
    return [text for _, text in found.values()]


def finish_of(kernel: Kernel) -> tuple[Callable[[], Any], str]:
    """(function that waits until the device is done, what a report says of it)."""
    if kernel.has("synchronize"):
        return kernel.module.synchronize, "the backend's synchronize() after each sample"
    device = kernel.declaration.device
    if device.startswith("cuda") and kernel.declaration.arrays == "torch":
        import torch

        return torch.cuda.synchronize, "torch.cuda.synchronize() after each sample"
    if device.startswith("cuda") and kernel.declaration.arrays == "cupy":
        import cupy

        return cupy.cuda.Device().synchronize, "Device.synchronize() after each sample"
    return lambda: None, "nothing to wait for"


def measured(texts: Iterable[str], kernel: Recording, backend: Backend) -> dict[str, Any]:
    """The report on the cases ``texts``."""
    report: dict[str, Any] = {"times": {}, "outputs": {}, "contract": {}, "missing": {}, "throttled": []}
    before = throttle_counts()
    finish, waits = finish_of(kernel)
    for text in texts:
        case = suite.parse(text)
        kernel.calls = []
        result = suite.run_case(case, backend)
        functions = TIMED.get(case.recipe["op"], ())
        made = [each for each in kernel.calls if each[0] in functions]
        if result.status != "passed":
            word = f"{WRONG}: " if result.status == "failed" else ""
            report["missing"][text] = word + _reason(result)
        elif not made:
            report["missing"][text] = f"the case calls none of {', '.join(functions)}"
        else:
            name, moved, keywords = made[-1]

            def call(name: str = name, moved: dict[str, Any] = moved, keywords: dict[str, Any] = keywords) -> Any:
                return kernel.invoke(name, moved, keywords)

            report["times"][text] = lower_quartile(call, finish)
            how = f"{name} alone, lower quartile of samples of {SAMPLE_SECONDS:g} s in {SECONDS:g} s, warm"
            report["contract"][text] = f"{how}; host clock; {waits}"
    if throttle_counts() > before:
        report["throttled"] = ["thermal slowdown of the CPU"]
    return report


def _reason(result: suite.Result) -> str:
    bad = [f"{one.name}: {one.measure:g} of {one.bound:g}" for one in result.comparisons if not one.passed]
    return (result.reason or "; ".join(bad) or result.status).replace("\n", " ")


def sources_hash(tree: Path) -> str:
    """Hash of names, times and sizes of the sources in ``tree``: one that is edited while it is measured shows."""
    hasher = xxhash.xxh3_128()
    for path in sorted(tree.rglob("*")):
        if is_source(None, str(path.relative_to(tree))) and path.is_file():
            status = path.stat()
            hasher.update(f"{path.relative_to(tree)} {status.st_mtime_ns} {status.st_size}\n".encode())
    return hasher.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the cases, or list them, and write the report; returns 0. Raises ValueError on a backend that cannot be
    loaded."""
    parser = argparse.ArgumentParser(prog="kernel_times")
    parser.add_argument("--tree", required=True, type=Path, help="the repository's folder")
    parser.add_argument("--backend", required=True, help="file.py or file.py:attribute in it")
    parser.add_argument("--json", required=True, type=Path, help="the report")
    parser.add_argument("--list", action="store_true", help="write the cases and measure nothing")
    parser.add_argument("--cases", nargs="*", default=[], metavar="TEXT")
    arguments = parser.parse_args(argv)
    tree = arguments.tree.resolve()
    # Before what is installed: the repository's own packages are those of this tree.
    sys.path[:0] = [str(tree), str(tree / "src")]
    sources = sources_hash(tree)
    module = load(str(tree / arguments.backend))
    kernel = Recording(module, declared(module))
    backend = Backend(arguments.backend, None, kernel)
    report = {"cases": timed_cases(backend)} if arguments.list else measured(arguments.cases, kernel, backend)
    arguments.json.write_text(json.dumps({"sources": sources, **report}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
