"""On a machine with several GPUs each worker of pytest-xdist has one of them."""

import pytest

from support.workers import visible_device


@pytest.mark.parametrize(
    ("worker", "chosen", "count", "expected"),
    [
        ("gw0", None, 4, "0"),
        ("gw3", None, 4, "3"),
        ("gw5", None, 4, "1"),
        ("gw1", None, 1, None),
        ("gw1", None, 0, None),
        (None, None, 4, None),
        ("master", None, 4, None),
        ("gw1", "2,5", 8, "5"),
        ("gw2", "GPU-a, GPU-b", 8, "GPU-a"),
        ("gw1", "3", 8, None),
        ("gw1", "", 8, None),
    ],
)
def test_the_device_of_a_worker(worker, chosen, count, expected, tmp_path):
    for number in range(count):
        (tmp_path / f"0000:{number}:00.0").mkdir()
    pairs = {"PYTEST_XDIST_WORKER": worker, "CUDA_VISIBLE_DEVICES": chosen}
    environment = {name: value for name, value in pairs.items() if value is not None}
    assert visible_device(environment, tmp_path) == expected


def test_a_machine_without_a_driver(tmp_path):
    assert visible_device({"PYTEST_XDIST_WORKER": "gw1"}, tmp_path / "none") is None
