"""What lies on the device and is not a kernel: containers of K/V and index, scratch, graphs."""

from .containers import CODINGS, SLOT_FIELDS, DeviceIndex, DeviceKV, DevicePool, read_kv, slot_table, to_device, to_host
from .graphs import Graph, Program, Staging, program_stream
from .scratch import StreamScratch

__all__ = [
    "CODINGS",
    "SLOT_FIELDS",
    "DeviceIndex",
    "DeviceKV",
    "DevicePool",
    "Graph",
    "Program",
    "Staging",
    "StreamScratch",
    "program_stream",
    "read_kv",
    "slot_table",
    "to_device",
    "to_host",
]
