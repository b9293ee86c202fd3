"""Clusters in the simulator: blocks that write into each other's shared memory and meet at ``barrier.cluster``.

A barrier orders what a lane did before it arrived ahead of what another does after its wait. So an access is ordered
before one of another block when that lane has waited more often than the first had arrived; where one of the two comes
from another block, anything else is a race.
"""

import struct

from .simulate_memory import SharedMemory
from .simulate_state import FULL, State, fault, requires
from .simulate_sync import meet, poll, warp_operation

SPAN = 1 << 20
"""Bytes between the shared memories of two blocks in the cluster's address space: more than a block has."""


class Cluster:
    """Blocks that were started together. ``blocks`` by rank, ``exits`` the arrivals of every lane that has ended."""

    def __init__(self, size):
        self.size, self.blocks, self.exits = size, [], []
        self.phases = []

    def arrive(self, lane):
        """Note the arrival of ``lane`` at its next barrier, and its block's order up to there."""
        if lane.arrivals > lane.waits:
            fault("barrier", "barrier.cluster: arrives again without a wait", lane)
        if lane.arrivals == len(self.phases):
            self.phases.append({})
        clocks, _ = self.phases[lane.arrivals].setdefault(lane.block, ([], {}))
        clocks.append((lane.seen, lane.index, lane.clock))
        lane.clock += 1
        lane.arrivals += 1

    def passed(self, phase):
        """Whether every lane of the cluster has arrived at barrier ``phase``, or ended."""
        arrived = sum(len(clocks) for clocks, _ in self.phases[phase].values())
        ended = sum(1 for arrivals in self.exits if arrivals <= phase)
        return arrived + ended == self.size * len(self.blocks[0].lanes)

    def leave(self, lane, phase):
        """Order ``lane`` after all that its block did before barrier ``phase``."""
        clocks, joined = self.phases[phase][lane.block]
        before = lane.seen
        if id(before) not in joined:
            meet([lane], [*clocks, (before, lane.index, lane.seen[lane.index])])
            # What many lanes had seen is joined once; the list stays alive with its key.
            joined[id(before)] = before, lane.seen
        lane.seen = joined[id(before)][1]
        lane.waits += 1


class ClusterMemory(SharedMemory):
    """Shared memory of a block of a cluster, into which the others write."""

    def __init__(self, dynamic):
        super().__init__(dynamic)
        self.touched, self.sent = {}, {}

    def _meet(self, address, size, what, atomic):
        lane = State.lane
        for word in range(address >> 2, (address + size + 3) >> 2):
            arrivals, by_atomic = self.sent.get(word, (-1, False))
            if lane.waits <= arrivals and not (atomic and by_atomic):
                fault("race", f"{what} shared word {4 * word}, which another block writes, without a barrier between")
            self.touched[word] = max(self.touched.get(word, -1), lane.arrivals)

    def reading(self, address, size):
        """As of a block alone."""
        super().reading(address, size)
        self._meet(address, size, "reads", False)

    def writing(self, address, size, atomic=False, pending=False):
        """As of a block alone."""
        super().writing(address, size, atomic, pending)
        self._meet(address, size, "writes", atomic)

    def sending(self, address, size, atomic=False):
        """Check a write by the running lane, which may be another block's, and note it."""
        self._check(address, size, "write")
        lane = State.lane
        for word in range(address >> 2, (address + size + 3) >> 2):
            arrivals, by_atomic = self.sent.get(word, (-1, False))
            if lane.waits <= arrivals and not (atomic and by_atomic):
                fault("race", f"sends to shared word {4 * word}, as another lane does, without a barrier between")
            if lane.waits <= self.touched.get(word, -1):
                fault("race", f"sends to shared word {4 * word}, which its block uses, without a barrier between")
            if atomic and not self.valid[word]:
                fault("unwritten", f"atomic on shared word {4 * word}: nothing written")
            self.sent[word] = max(arrivals, lane.arrivals), atomic
            self.valid[word], self.writers[word], self.readers[word] = 0b1111, None, None


def _arrive(lanes, _):
    for lane in lanes:
        if lane.block.cluster is None:
            fault("barrier", "barrier.cluster: not launched as a cluster", lane)
        lane.block.cluster.arrive(lane)
    return [None] * len(lanes)


def _await(lanes, _):
    return [None] * len(lanes)


def cluster_arrive():
    """See ``ptx.CLUSTER``."""
    warp_operation(_arrive, FULL, None)


def cluster_wait():
    """See ``ptx.CLUSTER``."""
    warp_operation(_await, FULL, None)
    lane = State.lane
    if lane.waits == lane.arrivals:
        fault("barrier", "barrier.cluster: waits without having arrived")
    while not lane.block.cluster.passed(lane.waits):
        poll()
    lane.block.cluster.leave(lane, lane.waits)


def map_shared(address, rank):
    """See ``ptx.ARITHMETIC``."""
    requires((9, 0), "mapa")
    cluster = State.lane.block.cluster
    if cluster is None or not 0 <= rank < cluster.size:
        fault("bounds", f"mapa to rank {rank}: the cluster has {cluster.size if cluster else 0} blocks")
    return (rank + 1) * SPAN + address


def _place(address, size, atomic=False):
    cluster = State.lane.block.cluster
    rank = address // SPAN - 1
    if cluster is None or not 0 <= rank < cluster.size:
        fault("bounds", f"address {address:#x} in the cluster's memory, which map_shared did not make")
    memory = cluster.blocks[rank].memory
    memory.sending(address % SPAN, size, atomic)
    State.progress += 1
    return memory.data, address % SPAN


def st_cluster_i64(address, value):
    """See ``ptx.CLUSTER``."""
    struct.pack_into("<q", *_place(address, 8), value)


def st_cluster_v2_i64(address, x, y):
    """See ``ptx.CLUSTER``."""
    struct.pack_into("<qq", *_place(address, 16), x, y)


def red_cluster_max_i32(address, value):
    """See ``ptx.CLUSTER``."""
    data, offset = _place(address, 4, atomic=True)
    struct.pack_into("<i", data, offset, max(struct.unpack_from("<i", data, offset)[0], value))
