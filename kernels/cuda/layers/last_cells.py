"""``last_cells`` on CUDA: the ids of the draft layer's dense window; ids of ``reference.exact.select.last_cells``."""

from collections.abc import Iterator

from ..common.checks import check_array
from ..common.views import THREADS
from ..toolchain.compiler import array_module, cuda, int32, kernel, launch
from ..toolchain.host import DeviceArray
from ..toolchain.ptx_rows import I2, PtxRow, signature_of


@kernel()
def last_cells_kernel(steps, ids, cap):
    """Grid (ids of a row / 256, rows)."""
    row = int32(cuda.blockIdx.y)
    index = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if index < cap:
        width = steps[row, 3]
        ids[row, index] = int32(steps[row, 1] - width + index) if index < width else int32(-1)


def last_cells(steps: DeviceArray, cap: int) -> DeviceArray:
    """Ids [n, cap] int32 of the last cells of every row; arguments and result as the reference's. ``steps`` [n, 4]
    int32 on the device; n at most 65,535, a grid's second axis. The widths are read there, so a captured launch follows
    them. Raises ValueError on other arrays."""
    check_array("steps", steps, "int32", (len(steps), 4))
    ids = array_module().empty((len(steps), cap), "int32")
    if ids.size:
        launch(last_cells_kernel, (-(-cap // THREADS), len(steps)), THREADS, (steps, ids, cap))
    return ids


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("last_cells", last_cells_kernel, signature_of(I2, I2, "int64"))
