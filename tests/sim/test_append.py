"""``append_kv`` and ``append_index`` on CUDA, in the simulator."""

import pytest

from cases.append_cases import (  # noqa: F401
    Backend,
    test_a_row_of_no_slot_writes_nothing,
    test_append_index_after_a_rejected_draft_and_with_unused_rows,
    test_append_index_in_windows_and_row_by_row,
    test_append_index_leaves_blocks_beyond_the_buffer_and_refuses_other_geometries,
    test_append_kv_gives_the_reference_bytes,
    test_append_kv_leaves_rows_beyond_the_capacity_and_refuses_other_geometries,
    test_page_sizes_and_one_row_at_a_time,
    test_several_slots_of_mixed_formats_in_one_call,
)
from qsa.kernels.cuda import simulator


@pytest.fixture(scope="module")
def backend():
    kv, index, device = (simulator.load(name) for name in ("append_kv", "append_index", "device"))
    return Backend({**vars(kv), **vars(index), **vars(device), "launches": simulator.launches})
