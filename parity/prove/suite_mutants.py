"""Wrong judges: small changes of comparisons, bounds, cases, contract and isolation, and the sentinel that must fall.

A judge that has become too kind passes what it should fail. So every check here is a kernel whose verdict is stated
(``sentinels/verdicts.py``), or a part of the suite by itself (``sentinels/parts.py``).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np

from qsa.golden import record

from .. import report, suite, wrong_outputs
from ..backend import Backend
from ..checks import accuracy, attend_inputs, goldens, index_operations, pages, selected, selection, split
from ..checks import storage as storage_checks
from ..compare import comparison, input_changes, likely
from ..compare import margins as classes
from ..compare.remembered import forget
from ..contract import domain, ids, kernel, own_storage
from ..isolation import messages, remote
from ..readable import junit
from .patching import Change, CodeMutant, Row, edits, forgetful, patch, run
from .sentinels import bound_mutants, parts, verdicts

CHECKS = verdicts.CHECKS | parts.CHECKS


def _over_all_heads(truth: np.ndarray, got: np.ndarray) -> np.ndarray:
    """The relative error of a whole row, for each of its heads."""
    truth, got = np.asarray(truth, np.float64), np.asarray(got, np.float64)
    axes = tuple(range(1, truth.ndim))
    off = np.sqrt(((got - truth) ** 2).sum(axis=axes, keepdims=True))
    size = np.sqrt((truth**2).sum(axis=axes, keepdims=True))
    return np.broadcast_to((off / np.where(size > 0, size, 1))[..., 0], truth.shape[:-1])


def _in_the_largest_element(truth: np.ndarray, got: np.ndarray) -> np.ndarray:
    """The largest error of an element relative to the vector's largest element."""
    off = np.abs(np.asarray(got, np.float64) - truth).max(axis=-1)
    size = np.abs(truth).max(axis=-1)
    return off / np.where(size > 0, size, 1)


def _nothing(*arguments: object, **keywords: object) -> None:
    pass


def _without(module: ModuleType, **found: object) -> Change:
    """A change that drops the cases of a module that have these parameters."""
    cases = module.cases

    def rest(*arguments: object) -> Iterator[dict]:
        return (recipe for recipe in cases(*arguments) if any(recipe.get(key) != found[key] for key in found))

    return patch(module, cases=rest)


# fmt: off
MUTANTS = [
    *bound_mutants.MUTANTS,
    *edits("comparison", comparison.Comparison, "passed",
        ("nothing compared passes", "self.size > 0 and ", "", "empty"),
        ("a NaN as a measure passes", "self.measure <= self.bound", "not self.measure > self.bound", "bounds"),
    ),
    *edits("comparison", suite, "run_case",
        ("a case without comparisons passes", "bool(comparisons) and all", "all", "empty"),
        ("one comparison that passes is enough", "and all(", "and any(", "exact one ULP", "step 1.2",
         "own storage written"),
        ("unsupported counts as passed", 'Result(case, "unsupported"', 'Result(case, "passed"', "refused",
         "nothing offered"),
        ("an exception counts as unsupported", 'Result(case, "failed", time.perf_counter() - started, reason',
         'Result(case, "unsupported", time.perf_counter() - started, reason', "an exception", "q changed"),
    ),
    *edits("comparison", suite.Tally, "exit_code",
        ("exit code 0 on a failure", 'not self.count("failed")', "True", "exit_codes"),
        ("exit code 0 where nothing passed", 'self.count("passed") and ', "", "exit_codes"),
        ("exit code 0 always", '0 if self.count("passed") and not self.count("failed") else 1', "0", "exit_codes"),
    ),
    *edits("reports", report, "_entry",
        ("a failure is none in JUnit", 'result.status == "failed", result', "False, result", "reports"),
    ),
    *edits("reports", junit, "text",
        ("JUnit counts no failures", "str(sum(bool(entry.failure) for entry in suite.entries))", '"0"', "reports"),
    ),
    *edits("reports", report, "make",
        ("a report leaves failed cases out", "for result in tally.results]",
         'for result in tally.results if result.status != "failed"]', "reports"),
    ),
    *edits("reports", suite.Result, "as_dict",
        ("the share of the first comparison", "worst = self.worst", "worst = (*self.comparisons, None)[0]", "reports"),
    ),
    *edits("reports", suite.Result, "lines",
        ("a reader does not see what failed", "verbose or not comparison.passed", "verbose", "reports"),
    ),
    *edits("comparison", suite, "worst_of",
        ("the best comparison as the worst", "return max(", "return min(", "exit_codes"),
    ),
    *edits("comparison", comparison, "_differs",
        ("a NaN that is right equals anything", "~np.isnan(got)", "np.zeros_like(nan)", "pairs"),
        ("a NaN that is wrong equals anything", "bit_patterns(expected) != bit_patterns(got)",
         "(bit_patterns(expected) != bit_patterns(got)) & ~np.isnan(got)", "pairs"),
        ("-0 equals +0 in exact", "bit_patterns(expected) != bit_patterns(got)", "expected != got", "pairs",
         "corners other zeros"),
        ("equal within a few ULP", "bit_patterns(expected) != bit_patterns(got)", "~np.isclose(expected, got)", "pairs",
         "exact one ULP"),
        ("integers are not compared", "return expected != got", "return np.zeros(expected.shape, bool)", "pairs"),
    ),
    *edits("comparison", comparison, "_mismatch",
        ("dtypes are not compared", "(expected.dtype == got.dtype or not dtypes)", "True", "pairs", "exact float64"),
        ("shapes are not compared", "expected.shape == got.shape", "expected.size == got.size", "pairs", "exact flat"),
        ("a wrong shape passes", "max(1, got.size),\n        0,", "0,\n        0,", "pairs", "float a row short"),
    ),
    CodeMutant("errors over all heads at once", "comparison", patch(comparison, relative_error=_over_all_heads),
               ("float one head 1.2",)),
    CodeMutant("errors by the largest element", "comparison", patch(comparison, relative_error=_in_the_largest_element),
               ("float one element 1.2",)),
    *edits("comparison", comparison, "relative_error",
        ("elements that are NaN are left out", "alike.all(axis=-1) &", "", "float one NaN"),
        ("a truth of zeros has no error", "((size > 0) | (off == 0))", "True", "pages none, something"),
        ("the root of the error", "off / np.where", "np.sqrt(off) / np.where", "float 0.8", "float 1.2"),
    ),
    *edits("comparison", comparison, "_distance",
        ("a NaN is no distance", "np.where(np.isnan(off), np.inf, off)", "np.nan_to_num(off)", "scores NaN"),
    ),
    *edits("comparison", accuracy, "_attend",
        ("bytes are not compared in exact", "[same] if kernel.passed else []", "[]", "exact one ULP"),
        ("own storage is not read back", "isinstance(w.kv, OwnKV)", "False", "own storage written"),
    ),
    *edits("comparison", accuracy, "_total",
        ("the error above quantisation is nothing", "total - quantisation", "0 * total", "float total"),
    ),
    *edits("comparison", accuracy, "_corners",
        ("bits of a NaN are not compared", "right.view(np.uint32)[nan], np",
         "np.ascontiguousarray(got, np.float32).view(" "np.uint32)[nan], np", "corners other NaN"),
    ),
    *edits("comparison", storage_checks, "unchanged",
        ("own storage is compared with itself", "np.stack(backend.read_own(stored.handle, cells))", "before",
         "own storage written"),
    ),
    *edits("comparison", index_operations, "appended",
        ("the tail of the index is not compared", "if open_cells", "if False", "tail wrong"),
        ("the dead key is compared with itself", "error(\"append_index: dead\", dead, got.dead_values()[None]",
         "error(\"append_index: dead\", got.dead_values()[None], got.dead_values()[None]", "dead key wrong"),
    ),
    *edits("comparison", split, "check",
        ("a schedule is compared with itself", "_both(backend, w, name, right, standard, got)",
         "_both(backend, w, name, right, standard, standard)", "step 1.2", "exact step one ULP"),
    ),
    *edits("comparison", split, "_both",
        ("the standard schedule is held to nothing", '("attend: batch", right.expected, standard), (name',
         '("attend: batch", standard, standard), (name', "wrong in every schedule"),
    ),
    *edits("comparison", goldens, "check",
        ("goldens are compared with nothing", "lines = store.check(name, produce_here)",
         "lines = store.check(name, produce_here)[:0]", "golden wrong"),
    ),
    CodeMutant("two records never differ", "comparison", patch(record, differences=lambda *_: []), ("golden wrong",)),
    *edits("comparison", likely, "_plain",
        ("every output is one of zeros", "if not wrong.any()", "if True", "twice the output"),
    ),
    *edits("selection", selected, "held_as_sets",
        ("ties are always forgiven", "(classes.tie if lowest else 0)", "0", "tie declared lowest"),
        ("ties are never forgiven", "(classes.tie if lowest else 0)", "classes.tie", "tie taken"),
        ("wrong cells are forgiven", "bad = classes.wrong +", "bad =", "a block that scores less", "a cell twice"),
    ),
    *edits("selection", classes, "_row",
        ("wrong cells count as rounding", "if slack and np.isfinite(a) and np.isfinite(b) and abs(a - b) <= slack",
         "if True", "indexer 1.2", "a block that scores less", "classes"),
        ("ten times the slack", "abs(a - b) <= slack", "abs(a - b) <= 10 * slack", "indexer 1.2", "classes"),
        ("the strongest block that was left does not count", "np.argmax(rank[low])", "np.argmin(rank[low])", "classes"),
        ("the weakest block that was taken does not count", "np.argmin(rank[high])", "np.argmax(rank[high])",
         "classes"),
        ("a malformed row is a tie", 'return "wrong", count, fault', 'return "tie", count, fault', "a cell twice",
         "classes"),
        ("another order is a tie", '"wrong", count, "the right cells in another order"',
         '"tie", count, "the right cells in another order"', "classes"),
        ("every difference is a tie", "rank[left] == rank[taken]", "True", "a block that scores less", "classes"),
    ),
    *edits("selection", classes, "_malformed",
        ("cells are a set without multiplicity", "len(np.unique(cells)) != width", "False", "a cell twice"),
        ("the tail may be left out", "if not np.isin(tail, cells).all()", "if False", "a cell of the tail left out"),
        ("ids behind the width may be anything", "(got[width:] != -1).any()", "False", "classes"),
    ),
    *edits("selection", ids, "to_cells",
        ("ids are taken as a set", "found.append(np.sort(row))",
         "found.append(np.sort(np.concatenate([np.unique(row), np.setdiff1d(np.arange(width), row)])[:width]))",
         "a cell twice"),
    ),
    *edits("poison", attend_inputs, "poisoned_kv",
        ("pages are no longer poisoned", "side.scale[:] = np.nan", "side.scale[:] = 1", "pages read beside",
         "ids read behind"),
    ),
    *edits("poison", pages, "_garbage_ids",
        ("no ids behind a row's width", "return w._replace(ids=ids)", "return w", "ids read behind"),
    ),
    *edits("poison", pages, "_with_unused_row",
        ("no unused row", "return w._replace(q", "return w; return w._replace(q", "unused row computed"),
    ),
    *edits("poison", pages, "_remove",
        ("no page is missing", "table[gone[missing]] = -1", "pass", "absent pages as zeros", "no absent pages"),
    ),
    *edits("buffers", kernel.Kernel, "array",
        ("a result is not copied", "np.array(to_numpy(host))", "np.asarray(to_numpy(host))", "one buffer"),
    ),
    CodeMutant("a result that was handed out is not overwritten", "buffers", patch(kernel, poison=_nothing),
               ("one stale buffer",)),
    *edits("buffers", kernel.Kernel, "run",
        ("writes outside an output are not seen", "not (out[0] == GUARD).all() or not (out[-1] == GUARD).all()",
         "False", "written outside"),
        ("writes behind an output are not seen", " or not (out[-1] == GUARD).all()", "", "written outside"),
    ),
    *edits("inputs", kernel.Kernel, "call",
        ("changed inputs are not compared", "given.check()\n    self._check_moved", "self._check_moved", "q changed",
         "pool changed", "table changed"),
    ),
    *edits("inputs", input_changes.Given, "changes",
        ("a change is never found", "if text:", "if False:", "q changed", "inputs"),
        ("a change of a number is not found", "None if _same(kept, value) else", "None if True else", "inputs"),
    ),
    *edits("inputs", input_changes.Given, "check",
        ("a changed input stays changed", "self.restore()", "pass", "inputs"),
    ),
    *edits("inputs", input_changes.Given, "__init__",
        ("every operation may write everything", "WRITTEN.get(operation, ())", '("q", "codes", "k", "x", "table")',
         "q changed", "inputs"),
    ),
    *edits("inputs", input_changes._Array, "difference",
        ("of an array its first elements alone", "bit_patterns(self.copy) != bit_patterns(now)",
         "(bit_patterns(self.copy) != bit_patterns(now)) & (np.arange(self.copy.size).reshape(self.copy.shape) < 9)",
         "q changed", "inputs"),
        ("hashes are not compared", "if a != b]", "if False]", "inputs"),
    ),
    *edits("inputs", input_changes, "_hashes",
        ("hashes of the first piece alone", "range(0, flat.size, PIECE)", "range(0, min(flat.size, 9), PIECE)",
         "inputs"),
    ),
    *edits("inputs", kernel, "call",
        ("the judge computes under the backend's errors", "np.seterr(**policy)", "pass", "errors raised"),
        ("a refusal by False is a result", "isinstance(result, (bool, np.bool_)) and not result", "False", "refused"),
    ),
    *edits("inputs", own_storage, "store",
        ("truth of own storage is what was given", "values = read(kernel, own.handle, held)", "values = k, v",
         "own storage read", "own storage 1.2"),
    ),
    *edits("inputs", own_storage, "read",
        ("own storage may give another shape", "if side.shape != shape", "if False", "storage"),
    ),
    *edits("inputs", Backend, "_typed",
        ("queries are handed over in float32", 'if name == "float32"', "if True", "bf16 queries"),
    ),
    *edits("inputs", Backend, "rounded",
        ("queries are not rounded to their type", "return rounded(x, getattr(self.declaration.types, stage))",
         "return x", "bf16 queries"),
    ),
    *(
        CodeMutant(f"not looked at: {function}", "domain", patch(domain, **{function: _nothing}), (check,))
        for function, check in {
            "check_values": "unusual_values",
            "check_steps": "no long context",
            "check_heads": "no such heads",
            "check_rule": "no such rule",
            "check_pools": "no such format",
            "check_ids": "no absent pages",
        }.items()
    ),
    *edits("domain", domain, "check_steps",
        ("rows beyond what is declared", "len(steps) > shapes.rows", "False", "no such rows"),
    ),
    *edits("domain", index_operations, "score_corners",
        ("NaN keys for a backend that has not declared them", 'kind == "nan" and domain.nan', 'kind == "nan"',
         "no NaN"),
    ),
    *(
        CodeMutant(f"cases dropped: {module.__name__.rpartition('.')[2]}, {text}", "cases", _without(module, **found),
                   ("families",))
        for module, text, found in (
            (accuracy, "flat scores", {"scores": "flat"}),
            (accuracy, "corners", {"op": "corners"}),
            (accuracy, "appends of int8", {"op": "append_kv", "format": "int8"}),
            (pages, "a middle page missing", {"missing": "middle"}),
            (pages, "reversed pages", {"op": "attend", "order": "reversed"}),
            (pages, "appends", {"op": "append_kv"}),
            (split, "the schedule multi", {"schedule": "multi"}),
            (selection, "the rule cells", {"rule": "cells"}),
            (selection, "special scores", {"scores": "special"}),
            (goldens, "goldens of append_kv", {"family": "append_kv"}),
        )
    ),
    *edits("cases", wrong_outputs, "passing",
        ("a survivor is not named", 'status == "passed" or', "", "survivors"),
    ),
    *edits("cases", wrong_outputs.WrongBackend, "_altered",
        ("outputs are never changed", "return wrong", "return right", "survivors"),
    ),
    *edits("isolation", remote.RemoteKernel, "_answer",
        ("a dead child is unsupported", "raise self._death(name) from None", "raise UnsupportedError(name) from None",
         "child ends"),
        ("no time limit", "self._channel.settimeout(seconds)", "self._channel.settimeout(None)", "child hangs"),
        ("a child that hangs is unsupported", "raise BackendDiedError(f\"{name}: no answer",
         "raise UnsupportedError(f\"{name}: no answer", "child hangs"),
    ),
    *edits("isolation", remote.RemoteKernel, "run",
        ("a change in shared memory is not looked at", "given.check({", "(lambda _: None)({",
         "child changes its inputs"),
    ),
    *edits("isolation", remote.RemoteKernel, "_result",
        ("a refusal of a child is an error", "raise UnsupportedError(header.text)", "raise BackendError(header.text)",
         "child refuses"),
        ("an error of a child is a refusal", "raise error", "raise UnsupportedError(header.text)", "child raises"),
    ),
    *edits("isolation", messages, "dtype_of",
        ("a child may send objects", "found.hasobject", "False", "answers"),
    ),
]
# fmt: on
"""Every suite mutant, by kind."""


def count(sample: bool = False) -> int:
    """The number of :func:`rows`."""
    return 1 + (len({mutant.kind for mutant in MUTANTS}) if sample else len(MUTANTS))


def rows(sample: bool = False, on_result: Callable[[Row], object] = lambda row: None) -> list[Row]:
    """The :class:`~.patching.Row` of every suite mutant, behind that of the unchanged code; with ``sample`` of one of
    each kind. ``on_result`` is called with each. A mutant whose words are gone from the source is not caught."""
    return run(
        [replace(mutant, change=forgetful(mutant.change, forget)) for mutant in MUTANTS], CHECKS, sample, on_result
    )
