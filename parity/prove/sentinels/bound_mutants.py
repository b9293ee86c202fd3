"""Wrong judges whose bounds have moved (``prove/suite_mutants.py``)."""

from ...checks import attend_inputs, fused, index_operations, indexer, nll, split
from ...checks import storage as storage_checks
from ...compare import ceiling, comparison, twin
from ..patching import CodeMutant, edit, edits, patch


def _widened(factor: int, *checks: str) -> CodeMutant:
    change = edit(comparison.Comparison, "passed", ("<= self.bound", f"<= {factor} * self.bound"))
    return CodeMutant(f"every bound is {factor} times as wide", "bounds", change, checks)


_PER_ROW = ".max(axis=1, keepdims=True)"

# fmt: off
MUTANTS = [
    _widened(2, "float 1.2", "scores 1.2", "keys 1.2", "own storage 1.2", "step 1.2"),
    _widened(4, "float 1.2", "bounds"),
    _widened(10, "float 1.2", "float total"),
    *(
        CodeMutant(f"{factor * 4} times the twin's error", "bounds", patch(twin, FACTOR=4 * factor),
                   ("float 0.8", "float 1.2", "keys 1.2"))
        for factor in (2, 4, 10)
    ),
    *edits("bounds", twin, "slack",
        ("forty roundings of the output", "4 * unit(name)", "40 * unit(name)", "float 0.8", "float 1.2",
         "float bf16 1.2"),
    ),
    *edits("bounds", twin, "in_order",
        ("a twin with weights of 8 bits", "rounded(p, types.weights)", 'rounded(p, "bf16")', "float 0.8", "float 1.2"),
        ("a twin with scores of 11 bits", "rounded(s, types.scores) * factor", 'rounded(s, "fp16") * factor',
         "float 1.2"),
    ),
    *edits("bounds", twin, "attention_bound",
        ("the worst row's bound for all rows", _PER_ROW, _PER_ROW + ".max() * np.ones((len(expected), 1))",
         "float one row 1.2"),
    ),
    *edits("bounds", twin, "scores",
        ("a twin of scores in 8 bits", "rounded(np.where",
         '0 * len(name) + rounded(rounded(dots, "bf16") * 0 + np.where', "scores 0.8"),
    ),
    *edits("bounds", twin, "score_bound",
        ("eighty roundings of a score", "8 * 2.0**-24", "80 * 2.0**-24", "scores 0.8", "scores 1.2"),
        ("twice the error of the twin of scores", "FACTOR * own + least", "2 * FACTOR * own + 2 * least", "scores 0.8"),
    ),
    *edits("bounds", twin, "pooled_keys",
        ("a twin of keys in 11 bits", "mean(axis=1, dtype=np.float32)",
         "mean(axis=1, dtype=np.float16).astype(np.float32)", "keys 0.8", "keys 1.2"),
    ),
    CodeMutant("a ceiling with roundings of 23 bits", "bounds", patch(ceiling, ROUNDING=2.0**-23),
               ("ceiling 0.8", "ceiling 1.2")),
    CodeMutant("a ceiling with an exp2 of 1e-6", "bounds", patch(ceiling, EXP2_ERROR=1e-6), ("ceiling 1.2",)),
    *edits("bounds", attend_inputs, "ceiling",
        ("a ceiling of 10", "exact_ceiling(w, expected, heads)", "10 * exact_ceiling(w, expected, heads)",
         "ceiling 0.8"),
    ),
    CodeMutant("26 roundings in the lane tree", "bounds", patch(index_operations, TREE_ROUNDINGS=26),
               ("exact scores 0.8", "exact scores 1.2")),
    CodeMutant("256 roundings of an indexer's score", "bounds", patch(indexer, ROUNDING=256 * 2.0**-24),
               ("rounding",)),
    CodeMutant("an NLL that may differ by 0.01", "bounds", patch(nll, BOUND=0.01), ("likelihoods",)),
    *edits("bounds", nll, "difference",
        ("a text may become less likely", 'abs(figures["mean"])', '-figures["mean"]', "likelihoods"),
    ),
    *edits("bounds", fused, "gated",
        ("twice the bound of gated attention", "bound * np.maximum(1, ratio)", "2 * bound * np.maximum(1, ratio)",
         "gated 0.8", "gated 1.2"),
        ("the gate is left out of the truth", "attention / (1 +", "attention / (1 + 0 *", "gated 0.8"),
    ),
    *edits("bounds", indexer, "_narrow_error",
        ("twice the error of a narrow indexer", "twin.FACTOR *", "2 * twin.FACTOR *", "indexer 1.2"),
    ),
    *edits("bounds", storage_checks, "stored_values",
        ("twice the error of the reference's codes", "1.05 * relative_error", "2.1 * relative_error", "stored right"),
        ("three roundings of a scale", "relative_error(x, right) + 2.0**-11", "relative_error(x, right) + 3 * 2.0**-11",
         "stored right", "stored 1.002"),
    ),
    *edits("bounds", storage_checks, "storage_error",
        ("twice the declared error of storage", "bound = backend.declaration.storage_error",
         "bound = 2 * (backend.declaration.storage_error or 0)", "own storage 0.8", "own storage 1.2"),
    ),
    *edits("bounds", split, "_both",
        ("four times the bound between schedules", "2 * right.bound, twice", "8 * right.bound, twice", "step 0.8",
         "step 1.2"),
    ),
    *edits("bounds", comparison, "_check_bounds",
        ("a bound may be infinite", "np.isfinite(bounds) &", "~np.isnan(bounds) &", "bounds"),
        ("a bound may be anything", "raise ValueError", "return; raise ValueError", "bounds"),
    ),
    *edits("bounds", comparison, "most",
        ("a NaN among figures is looked over", "undefined.argmax() if undefined.any() else share.argmax()",
         "np.nan_to_num(share).argmax()", "bounds"),
        ("the largest figure whatever its bound", "figures / bounds", "figures", "bounds"),
    ),
]
# fmt: on
"""The mutants of bounds."""
