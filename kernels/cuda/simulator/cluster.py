"""Clusters in the simulator: blocks that store into each other's shared memory, and mbarriers that count the bytes.

``barrier.cluster`` (its relaxed arrival) orders no memory. All that it tells is an ``mbarrier.init`` which its lane has
put behind a ``fence.mbarrier_init``: whoever waits at the barrier at which that lane arrives next may send to it. What
was sent may be read by a lane that has itself seen the end of the phase in which the mbarrier counted it.

The rules are stricter than the memory model, which keeps them independent of the order in which blocks happen to run:

- A word that is sent to is sent to once in a launch, and its block neither uses it before nor ever writes it. Nothing
  tells a sender that a block is done with a word, as the barrier orders no memory, and asynchronous stores are in no
  order: an earlier use would be a race.
- An mbarrier counts bytes in its first phase alone, as nothing tells a sender that a later one has begun.
- An arrival at an mbarrier orders none of its lane's own accesses, and who has not looked at the mbarrier has not seen
  its phase end, whatever barriers it shares with those that have.
- A block ends only when every byte that was sent to it has been waited for: its memory is gone then.
"""

from functools import partial
from typing import Any

from ..toolchain.constants import FULL_WARP
from .memory import SharedMemory
from .state import State, fault, requires
from .sync import poll, warp_operation

SPAN = 1 << 20
"""Bytes between the shared memories of two blocks in the cluster's address space: more than a block has."""

LIMIT = 1 << 20
"""An mbarrier's arrivals and bytes stay below it (PTX)."""


class Cluster:
    """Blocks that were started together. ``blocks`` by rank; ``exits``: at how many barriers every lane that has ended
    had arrived; ``phases``: the lanes that have arrived at each barrier."""

    def __init__(self, size: Any) -> None:
        self.size, self.blocks, self.exits = size, [], []
        self.phases = []

    def arrive(self, lane: Any) -> None:
        """Note the arrival of ``lane`` at its next barrier."""
        if lane.arrivals > lane.waits:
            fault("barrier", "barrier.cluster: arrives again without a wait", lane)
        if lane.arrivals == len(self.phases):
            self.phases.append(0)
        self.phases[lane.arrivals] += 1
        lane.arrivals += 1

    def absent(self, phase: Any) -> Any:
        """Lanes of the cluster that have neither arrived at barrier ``phase`` nor ended."""
        ended = sum(1 for arrivals in self.exits if arrivals <= phase)
        return self.size * len(self.blocks[0].lanes) - self.phases[phase] - ended

    def told(self, phase: Any) -> Any:
        """What a lane waits for at barrier ``phase``, in words."""
        return f"{self.absent(phase)} lanes at barrier.cluster {phase}"

    def leave(self, lane: Any) -> None:
        """Note the end of ``lane``."""
        self.exits.append(lane.arrivals)
        if not lane.block.running:
            lane.block.memory.leave()


class Mbarrier:
    """An mbarrier at a shared ``address``, of ``count`` arrivals a phase, initialised by the lane ``owner``.

    ``pending`` arrivals and ``missing`` bytes end the ``phase`` when both are 0; bytes that come before they are
    expected take ``missing`` below 0. ``came``: the bytes that have come; ``seen``: the lanes that have seen its first
    phase end; ``fenced``: the ``barrier.cluster`` at which the owner's arrival tells other blocks of it, None before
    the fence.
    """

    def __init__(self, owner: Any, address: Any, count: Any) -> None:
        self.owner, self.clock, self.address, self.count = owner, owner.clock, address, count
        self.pending, self.missing, self.phase, self.came = count, 0, 0, 0
        self.fenced, self.seen = None, set()

    def __str__(self):
        block = self.owner.block
        return f"mbarrier at shared address {self.address} of rank {block.cluster.blocks.index(block)}"

    def told(self) -> Any:
        """What it waits for, in words."""
        surplus = f"{-self.missing} bytes more than it expects" if self.missing < 0 else f"{self.missing} bytes missing"
        return f"{self}: {self.pending} arrivals pending, {surplus}"

    def known(self, what: Any) -> None:
        """A fault unless the running lane is ordered after the initialisation, in its own block or by the cluster's
        barrier."""
        lane, owner = State.lane, self.owner
        within = lane.block is owner.block and (lane is owner or lane.seen[owner.index] >= self.clock)
        if within or (self.fenced is not None and self.fenced < min(lane.waits, owner.arrivals)):
            return
        if lane.block is owner.block:
            fault("race", f"{what} on the {self}, which lane {owner.index} initialised without a barrier between")
        if self.fenced is None:
            fault("race", f"{what} on the {self}, which lane {owner.index} there initialised without a fence after it")
        missing = f"without a barrier.cluster at which lane {owner.index} there arrived after its fence"
        fault("race", f"{what} on the {self}, {missing}")

    def change(self, arrivals: Any, n: Any) -> None:
        """Take off ``arrivals`` and expect ``n`` bytes more, which may be below 0; the phase may end."""
        if arrivals > self.pending:
            fault("barrier", f"arrives once more than the count of {self.count}: {self.told()}")
        self.pending -= arrivals
        self.missing += n
        if self.missing >= LIMIT:
            fault("overflow", f"{self.told()}: beyond what an mbarrier counts")
        if self.pending == self.missing == 0:
            self.phase += 1
            self.pending = self.count
        State.progress += 1

    def deliver(self, n: Any) -> None:
        """Count ``n`` bytes that have come."""
        if self.phase:
            fault("barrier", f"sends {n} bytes more than the {self} expects, which has had its {self.came} bytes")
        self.came += n
        self.change(0, -n)


class ClusterMemory(SharedMemory):
    """Shared memory of a block of a cluster. ``mbarriers`` by address; ``sent``: of every word that was sent to, the
    mbarrier that counts it."""

    def __init__(self, dynamic: Any) -> None:
        super().__init__(dynamic)
        self.mbarriers, self.sent = {}, {}

    def _ordinary(self, address, size, what):
        for word in range(address >> 2, (address + size + 3) >> 2):
            if word << 2 & ~7 in self.mbarriers:
                fault("race", f"{what} shared word {4 * word} of the {self.mbarriers[word << 2 & ~7]}")
            mbarrier = self.sent.get(word)
            if mbarrier is not None and (what == "writes" or State.lane not in mbarrier.seen):
                which = "which is sent" if what == "writes" else "and has not seen the end of what is sent"
                fault("race", f"{what} shared word {4 * word}, {which}, counted by the {mbarrier}")

    def reading(self, address: Any, size: Any) -> None:
        """As of a block alone."""
        self._ordinary(address, size, "reads")
        super().reading(address, size)

    def writing(self, address: Any, size: Any, atomic: Any = False, pending: Any = False) -> None:
        """As of a block alone."""
        self._ordinary(address, size, "writes")
        super().writing(address, size, atomic, pending)

    def initialise(self, address: Any, count: Any) -> None:
        """An mbarrier of the running lane."""
        if address in self.mbarriers:
            fault("barrier", f"mbarrier.init of the {self.mbarriers[address]} a second time")
        if not 0 < count < LIMIT:
            fault("overflow", f"mbarrier.init: {count} arrivals")
        self.writing(address, 8)
        self.mbarriers[address] = Mbarrier(State.lane, address, count)

    def mbarrier(self, address: Any, what: Any) -> Any:
        """The :class:`Mbarrier` at ``address``, of which the running lane must know."""
        self._check(address, 8, what)
        if address not in self.mbarriers:
            fault("unwritten", f"{what}: nothing has initialised an mbarrier at shared address {address}")
        self.mbarriers[address].known(what)
        return self.mbarriers[address]

    def receive(self, address: Any, size: Any, mbarrier: Any) -> None:
        """Check an asynchronous store by the running lane, of any block, and note it."""
        self._check(address, size, "st.async")
        for word in range(address >> 2, (address + size) >> 2):
            if word in self.sent:
                fault("race", f"st.async to shared word {4 * word} of the block of the {mbarrier}, sent to before")
            if self.valid[word]:
                fault("race", f"st.async to shared word {4 * word} of the block of the {mbarrier}, which uses it")
            self.sent[word], self.valid[word] = mbarrier, 0b1111
        mbarrier.deliver(size)

    def leave(self) -> None:
        """Called when all lanes of the block have ended."""
        for mbarrier in self.mbarriers.values():
            if mbarrier.missing:
                fault("barrier", f"the block ends before the {mbarrier.told()}")
            if mbarrier.came and not mbarrier.seen:
                fault("barrier", f"the block ends and has not waited for the {mbarrier.came} bytes of the {mbarrier}")


def _cluster(what):
    """The running lane's cluster; a fault where there is none."""
    requires((9, 0), what)
    if State.lane.block.cluster is None:
        fault("barrier", f"{what}: not launched as a cluster")
    return State.lane.block.cluster


def _await(told):
    """Let others run; ``told()`` says what this lane waits for."""
    lane = State.lane
    lane.awaits = told
    poll()
    lane.awaits = None


def _arrive(lanes, _):
    for lane in lanes:
        lane.block.cluster.arrive(lane)
    return [None] * len(lanes)


def _wait(lanes, _):
    return [None] * len(lanes)


def cluster_arrive_relaxed() -> None:
    """Arrive at the cluster's next barrier without waiting; orders no memory."""
    _cluster("barrier.cluster")
    warp_operation(_arrive, FULL_WARP, None)


def cluster_wait() -> None:
    """Return once every lane of the cluster that has not ended has arrived at this lane's last barrier."""
    cluster = _cluster("barrier.cluster")
    warp_operation(_wait, FULL_WARP, None)
    lane = State.lane
    if lane.waits == lane.arrivals:
        fault("barrier", "barrier.cluster: waits without having arrived")
    while cluster.absent(lane.waits):
        _await(partial(cluster.told, lane.waits))
    lane.waits += 1


def mbarrier_init(address: Any, count: Any) -> None:
    """Make a barrier of ``count`` arrivals in 8 bytes of the block's shared memory."""
    _cluster("mbarrier.init")
    State.lane.block.memory.initialise(address, count)


def fence_mbarrier_init() -> None:
    """Tell the cluster, by the lane's next arrival, of the mbarriers that it has made."""
    _cluster("fence.mbarrier_init")
    lane = State.lane
    for mbarrier in lane.block.memory.mbarriers.values():
        if mbarrier.owner is lane and mbarrier.fenced is None:
            mbarrier.fenced = lane.arrivals


def mbarrier_arrive_expect(address: Any, n_bytes: Any) -> None:
    """Arrive at an mbarrier, which then waits for ``n_bytes`` bytes more."""
    _cluster("mbarrier.arrive")
    mbarrier = State.lane.block.memory.mbarrier(address, "mbarrier.arrive")
    if not 0 <= n_bytes < LIMIT:
        fault("overflow", f"mbarrier.arrive: expects {n_bytes} bytes")
    mbarrier.change(1, n_bytes)


def mbarrier_arrive_expect_at(mapped: Any, n_bytes: Any) -> None:
    """As :func:`mbarrier_arrive_expect`, at the mbarrier of any block of the cluster."""
    memory, address = _mapped(mapped, "mbarrier.arrive")
    mbarrier = memory.mbarrier(address, "mbarrier.arrive")
    if not 0 <= n_bytes < LIMIT:
        fault("overflow", f"mbarrier.arrive: expects {n_bytes} bytes")
    mbarrier.change(1, n_bytes)


def mbarrier_try_wait(address: Any, parity: Any) -> Any:
    """1 when the phase under way has the other parity, hence also of parity 1 at first."""
    _cluster("mbarrier.try_wait")
    mbarrier = State.lane.block.memory.mbarrier(address, "mbarrier.try_wait")
    if not (mbarrier.phase ^ parity) & 1:
        _await(mbarrier.told)
        return 0
    if mbarrier.phase:
        mbarrier.seen.add(State.lane)
    return 1


def map_shared(address: Any, rank: Any) -> Any:
    """Address in the cluster's memory of what ``address`` names in the block ``rank``."""
    requires((9, 0), "mapa")
    cluster = State.lane.block.cluster
    if cluster is None or not 0 <= rank < cluster.size:
        fault("bounds", f"mapa to rank {rank}: the cluster has {cluster.size if cluster else 0} blocks")
    return (rank + 1) * SPAN + address


def _mapped(address, what):
    """(memory of a block, address in it) of an ``address`` that map_shared made."""
    cluster, rank = _cluster(what), address // SPAN - 1
    if not 0 <= rank < cluster.size:
        fault("bounds", f"{what}: address {address:#x} is none that map_shared made")
    block = cluster.blocks[rank]
    if not block.running:
        fault("bounds", f"{what} to rank {rank}, all of whose lanes have ended: its memory is gone")
    return block.memory, address % SPAN


def receive(address: Any, size: Any, mbarrier: Any) -> Any:
    """Check an asynchronous store of the running lane and count its bytes; (memory, offset) to store them at."""
    memory, offset = _mapped(address, "st.async")
    counting, counts = _mapped(mbarrier, "st.async")
    if counting is not memory:
        ranks = address // SPAN - 1, mbarrier // SPAN - 1
        fault("bounds", "st.async to rank {}, counted by an mbarrier of rank {}".format(*ranks))
    memory.receive(offset, size, memory.mbarrier(counts, "st.async"))
    return memory.data, offset
