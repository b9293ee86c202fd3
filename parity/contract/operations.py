"""The functions that a backend may define, with their signatures: the text of ``qsa parity --help``.

Every function is optional. Arguments that are named here may be taken by name or position, in this order.
"""

import ast
from dataclasses import dataclass

from qsa.kernels.ops import OPERATIONS


@dataclass(frozen=True)
class Function:
    """``signature`` as a user writes it, what it ``gives``, and the options (keywords) that it may take."""

    name: str
    signature: str
    gives: str
    options: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, bool]:
        """Name of every parameter of the signature -> whether it may be left out."""
        function = ast.parse(f"def {self.signature}: ...").body[0]
        assert isinstance(function, ast.FunctionDef)
        names = [argument.arg for argument in function.args.args]
        needed = len(names) - len(function.args.defaults)
        return {name: number >= needed for number, name in enumerate(names)}


_ALL = (
    Function("append_kv", "append_kv(k, v, kv, steps, slots=None)", "writes into kv, a PagedKV of ours"),
    Function("append_index", "append_index(raw, steps, index)", "writes into index, an Index of ours"),
    Function("block_scores", "block_scores(q_idx, index, steps)", "[rows, max_blocks]", ("schedule",)),
    Function("select", "select(scores, steps)", "ids, a row for each", ("rule", "geometry", "schedule")),
    Function(
        "attend",
        "attend(q, kv, ids, steps, slots=None)",
        "[rows, heads, dim]",
        ("schedule", "splits", "arithmetic", "out"),
    ),
    Function("cache", "cache(capacity)", "own storage for K and V, handed back as kv"),
    Function("append", "append(cache, k, v, positions)", "writes K and V [n, kv heads, dim] at positions [n]"),
    Function("read", "read(cache, positions)", "(K, V) as numbers [n, kv heads, dim]"),
    Function("index_cache", "index_cache(max_blocks, weight, rope, rope0)", "own index, handed back as index"),
    Function("index_append", "index_append(index, raw, positions)", "appends raw keys [n, idx dim]"),
    Function("index_read", "index_read(index, blocks)", "pooled keys [n, idx dim] as numbers"),
    Function("indexer", "indexer(q_idx, raw, weight, rope, steps)", "ids: fused", ("rule",)),
    Function("attend_gated", "attend_gated(q, gate, kv, ids, steps)", "attend times sigmoid(gate): fused"),
    Function(
        "sparse_attention",
        "sparse_attention(q, q_idx, raw, weight, rope, kv, steps)",
        "[rows, heads, dim]: indexer and attend fused",
        ("rule",),
    ),
    Function("attend_stages", "attend_stages(q, kv, ids, steps, row)", "dict of one row's intermediate arrays"),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _ALL}

assert all(name in FUNCTIONS for name in OPERATIONS)


def help_text() -> str:
    """A line for each function: its signature, what it gives, the keywords that it may take."""
    lines = []
    for function in FUNCTIONS.values():
        options = f"; may take {', '.join(f'{each}=' for each in function.options)}" if function.options else ""
        lines.append(f"  {function.signature}\n      {function.gives}{options}")
    return "\n".join(lines)
