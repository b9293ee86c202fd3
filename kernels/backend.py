"""What a backend is: the five operations, the operations of layers, and a sampler, each as a typing protocol.

Our backends are modules: ``qsa.kernels.cpu``, ``qsa.kernels.cuda.backend`` and, in NumPy, ``qsa.reference.exact``. A
module fits a protocol when its functions have these names, parameters and defaults. It may take further keyword
arguments with defaults of their own. The type checker and ``tests/cpu/kernels/test_backends.py`` hold ours to it.

An operation of a backend gives the bytes of ``qsa.reference.exact``. It returns False when it refuses: nothing has been
launched or written then, and :func:`qsa.kernels.ops.refuse` has counted it.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from qsa.reference.geometry import REAL, Geometry
from qsa.reference.sampler import PICK

Array: TypeAlias = Any
"""An array of the backend: NumPy's, or the one that the backend's ``to_device`` makes of it."""

KV: TypeAlias = Any
"""A ``qsa.reference.kv.PagedKV`` or the backend's own form of it; or a list of them, one for each slot."""

IndexBuffers: TypeAlias = Any
"""A ``qsa.reference.index.Index`` of float32 or the backend's own form of it."""

Weight: TypeAlias = Any
"""A weight in the form that the backend's ``load_linear`` or ``load_table`` gives."""

Refusal: TypeAlias = Literal[False]


class Operations(Protocol):
    """The five operations with the parameters that every one of our backends takes.

    ``steps`` [rows, 4] int32 are step records (pos, n_kv, n_bid, width), as ``qsa.reference.geometry.step_records``
    makes them. Every operation raises ValueError on mismatched shapes and dtypes, and has written nothing then.
    """

    def append_kv(self, k: Array, v: Array, kv: KV, steps: Array, slots: Array | None = None) -> bool:
        """Writes the cell at ``pos`` of every row: into its page where that is resident, and into the host copy.

        k, v   [rows, n_head_kv, head_dim] float32, finite; K is normed and rotated already
        slots  [rows] int32, the number of each row's entry in the list ``kv``; None for a single one

        Returns True.
        """
        ...

    def append_index(self, raw: Array, steps: Array, index: IndexBuffers) -> bool:
        """Appends the raw indexer key of every row, in order. raw [rows, idx_dim] float32. Returns True."""
        ...

    def block_scores(
        self, q_idx: Array, index: IndexBuffers, steps: Array, out: Array | None = None
    ) -> Array | Refusal:
        """Scores of every block for every row.

        q_idx  [rows, idx_heads, idx_dim] float32, normed and rotated

        Returns float32 [rows, max_blocks], ``out`` where given. Entries after a row's n_bid are not written.
        """
        ...

    def select(
        self,
        scores: Array,
        steps: Array,
        ids: Array | None = None,
        *,
        rule: str = "blocks",
        geometry: Geometry = REAL,
    ) -> Array | Refusal:
        """The selected cells of every row, ascending and unique.

        scores  [rows, blocks] float32
        rule    ``blocks`` or ``cells``; ``steps`` are made for it

        Returns int32 [rows, cap], ``ids`` where given: ``width`` cells, then -1.
        """
        ...

    def attend(
        self, q: Array, kv: KV, ids: Array, steps: Array, slots: Array | None = None, out: Array | None = None
    ) -> Array | Refusal:
        """Attention of every row over its selected cells.

        q      [rows, n_head, head_dim] float32, normed and rotated
        ids    [rows, cap] int32; -1, and a cell whose page is not resident, is not selected
        slots  [rows] int32, the number of each row's entry in the list ``kv``; None for a single one

        Returns float32 [rows, n_head, head_dim], ``out`` where given. Raises IndexError on an id beyond the capacity.
        """
        ...


class Layers(Protocol):
    """The operations of which a model's layers are made: the namespace ``layers`` of a backend.

    All arrays are float32 unless a line says otherwise. ``causal_conv`` and ``delta_rule`` advance their state in
    place; every other input is read only. A row's bytes do not depend on the rows beside it.
    """

    def add(self, x: Array, y: Array) -> Array:
        """x + y. x [rows, ..., n]; y in the shape of x, or [rows, 1, n]."""
        ...

    def add_gated(self, x: Array, gated: Array, mixed: Array) -> Array:
        """x + (gated + silu(mixed)), all of one shape."""
        ...

    def causal_conv(
        self, x: Array, taps: Array, past: Any, dilation: int = 1, spans: Sequence[slice] | None = None
    ) -> Array:
        """Causal depthwise convolution [rows, channels] of x [rows, channels] with taps [kernel, channels].

        past   [(kernel - 1) * dilation, channels], the inputs before x, oldest first; with ``spans`` a list of them
        spans  the slices of rows that belong to each sequence; None for a single one
        """
        ...

    def decay_beta(self, a: Array, b: Array, dt_bias: Array, rate: Array) -> tuple[Array, Array]:
        """exp(-(rate * softplus(a + dt_bias))) and sigmoid(b), [rows, heads]; dt_bias and rate [heads]."""
        ...

    def delta_rule(
        self,
        q: Array,
        k: Array,
        v: Array,
        decay: Array,
        beta: Array,
        memory: Any,
        spans: Sequence[slice] | None = None,
    ) -> Array:
        """The gated delta rule: [rows, heads, value dim].

        q, k         [rows, key heads, key dim]
        v            [rows, heads, value dim]
        decay, beta  [rows, heads]
        memory       [heads, key dim, value dim]; with ``spans`` a list of them
        spans        the slices of rows that belong to each sequence; None for a single one
        """
        ...

    def embed(self, ids: Array, table: Weight) -> Array:
        """Rows [..., dim] of a table that ``load_table`` gave. ids [...] int64."""
        ...

    def experts(self, x: Array, ids: Array, shares: Array, gate_up: Weight, down: Weight) -> Array:
        """The chosen experts' outputs by share, [rows, hidden]. ids [rows, top] int64 and shares [rows, top]."""
        ...

    def gated_norm(self, x: Array, gate: Array, weight: Array, eps: float, activation: str) -> Array:
        """rms_norm of x [rows, heads, dim] times ``activation`` (``sigmoid`` or ``silu``) of the gate."""
        ...

    def inject(self, streams: Array, share: Array, y: Array) -> Array:
        """streams [rows, n, hidden] + 2 * sigmoid(share [rows, n] / n) * y [rows, hidden]."""
        ...

    def l2_norm(self, x: Array, factor: float) -> Array:
        """x / sqrt(sum of squares + 1e-6) * factor over the last axis."""
        ...

    def last_cells(self, steps: Array, cap: int) -> Array:
        """Ids int32 [rows, cap] of the last ``width`` cells of every row, then -1."""
        ...

    def linear(self, x: Array, weight: Weight) -> Array:
        """x [rows, in] times a weight that ``load_linear`` gave: [rows, out]."""
        ...

    def load_linear(self, weight: Any) -> Weight:
        """The form in which ``linear`` and ``experts`` take a ``QuantisedLinear``."""
        ...

    def load_table(self, table: Any) -> Weight:
        """The form in which ``embed`` takes a ``QuantisedLinear``."""
        ...

    def mix_streams(self, normed: Array, share: Array) -> Array:
        """Mean over the streams of sigmoid(share) * normed, [rows, hidden]; both [rows, streams, hidden]."""
        ...

    def ngram_gate(self, key: Array, query: Array, value: Array) -> Array:
        """The gated value of PLE [rows, streams, hidden]; key and query the same, value [rows, hidden]."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """x / sqrt(mean of squares + eps) * weight over the last axis."""
        ...

    def rotate(self, x: Array, table: Array) -> Array:
        """x [rows, heads, dim] with its pairs (i, i + n_rot/2) rotated; table [rows, n_rot], cos then sin."""
        ...

    def route(self, logits: Array, top: int) -> tuple[Array, Array]:
        """The experts of each row: ids int64 [rows, top], best first, and their shares."""
        ...

    def scaled_silu(self, x: Array, divisor: float) -> Array:
        """silu(x / divisor)."""
        ...

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """x * sigmoid(gate); gate in the shape of x, or [rows, 1]."""
        ...

    def silu(self, x: Array) -> Array:
        """x * sigmoid(x)."""
        ...

    def swiglu(self, gate_up: Array) -> Array:
        """silu(gate) * up of gate_up [rows, 2 * width], the gate first."""
        ...


class Backend(Operations, Protocol):
    """A backend that an engine can use: the operations with their schedules and arithmetic, and the layers.

    ``schedule`` names a way to cut the work, one of :data:`qsa.kernels.ops.OPERATIONS`; None is the standing one. No
    schedule changes a bit of the exact arithmetic.
    """

    @property
    def layers(self) -> Layers:
        """The operations of layers."""
        ...

    def block_scores(
        self,
        q_idx: Array,
        index: IndexBuffers,
        steps: Array,
        out: Array | None = None,
        *,
        schedule: str | None = None,
    ) -> Array | Refusal:
        """As :meth:`Operations.block_scores`."""
        ...

    def select(
        self,
        scores: Array,
        steps: Array,
        ids: Array | None = None,
        *,
        rule: str = "blocks",
        geometry: Geometry = REAL,
        schedule: str | None = None,
    ) -> Array | Refusal:
        """As :meth:`Operations.select`."""
        ...

    def attend(
        self,
        q: Array,
        kv: KV,
        ids: Array,
        steps: Array,
        slots: Array | None = None,
        out: Array | None = None,
        *,
        schedule: str | None = None,
        splits: int | None = None,
        arithmetic: str | None = None,
    ) -> Array | Refusal:
        """As :meth:`Operations.attend`.

        splits      parts of a row's cells in the schedule ``split``, 1 to ``MAX_SPLITS``; None is ``MAX_SPLITS`` in
                    the float arithmetic, where it decides bits, and the backend's choice in the exact one
        arithmetic  ``exact`` or ``float``; None is what the switch QSA_ARITHMETIC says
        """
        ...


class Sampler(Protocol):
    """The sampling chain over rows of logits, on the host: ``qsa.kernels.cpu.sampler``."""

    def new_lists(self, rows: int) -> Any:
        """Lists for ``rows`` rows, each of at most 64 tokens: ``ids`` int32, ``masses`` uint64 and ``counts`` int32."""
        ...

    def sample(
        self,
        logits: Array,
        options: Any,
        history: Array,
        lengths: Array,
        seeds: Array,
        positions: Array,
        *,
        slots: Array | None = None,
        purpose: int = PICK,
        tokens: Array | None = None,
        lists: Any = None,
    ) -> Array | Refusal:
        """One token for each row.

        logits     [rows, vocab] float32
        options    a Sampling, one for each row, or option rows int32 (``reference.exact.sampler.option_rows``)
        history    [slots, capacity] int32 tokens, a line for each sequence
        lengths    int32 [rows]: tokens of its line that come before the row's own
        seeds      uint64 [rows]
        positions  int64 [rows]; negative for a row that is not in use
        slots      int32 [rows], the row's line; None: line i for row i
        purpose    the Philox stream: PICK, or DRAFTER for a drafter's own draw
        lists      what :meth:`new_lists` gave, to be filled

        Returns tokens int32 [rows], ``tokens`` where given. A negative one is a code of
        ``reference.exact.sampler.ERRORS``.
        """
        ...

    def argmax(self, logits: Array, tokens: Array | None = None) -> Array | Refusal:
        """The largest logit of each row, ties to the lower id; int32 [rows]."""
        ...


class DeviceSampler(Sampler, Protocol):
    """The sampling chain where the logits are: ``row_sampler`` of a backend whose arrays lie on a device."""

    def takes(self, table: Any) -> bool:
        """Whether the sampler's lists have room for the option rows ``table`` int32 [rows, words], on the host.

        Where they have not, the refusal is counted and False returned.
        """
        ...
