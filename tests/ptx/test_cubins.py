"""Machine code on disk: its names tell apart all that can change it, and nothing but whole code is read."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")

from qsa.kernels.cuda.attend_exact import exchange_cluster, scores
from qsa.kernels.cuda.attend_exact import kernel as attend_exact
from qsa.kernels.cuda.toolchain import cubins, driver
from qsa.kernels.cuda.toolchain.compiler import int32, kernel, types

CAPABILITY = (9, 0)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QSA_CACHE", str(tmp_path))
    monkeypatch.delenv(cubins.OFF, raising=False)
    return tmp_path / "cubins"


def build(step, **options):
    @kernel(**options)
    def counted(x, n):
        x[0] = n + int32(step)

    return counted


TYPES = (types.int64, types.int32)


def test_a_name_tells_apart_constants_options_types_and_devices(monkeypatch):
    same = cubins.key(build(1), TYPES, CAPABILITY)
    assert same == cubins.key(build(1), TYPES, CAPABILITY)
    others = [
        cubins.key(build(2), TYPES, CAPABILITY),
        cubins.key(build(1, shared_memory_carveout=100), TYPES, CAPABILITY),
        cubins.key(build(1), TYPES[::-1], CAPABILITY),
        cubins.key(build(1), TYPES, (8, 0)),
    ]
    monkeypatch.setenv("NUMBA_OPT", "1")
    others.append(cubins.key(build(1), TYPES, CAPABILITY))
    assert len({same, *others}) == 6


@pytest.mark.parametrize("module, name", [(exchange_cluster, "send_mass"), (scores, "rounded_dot")])
def test_a_name_tells_apart_a_function_that_was_exchanged_in_another_module(monkeypatch, module, name):
    """As a wrong kernel of ``qsa prove`` is: the sources on disk stay as they are."""
    made = attend_exact.build.build(4, 4, 2, 12, 3, 1, True, True)
    before = cubins.code_hash(made)
    assert before == cubins.code_hash(made)
    monkeypatch.setattr(module, name, build(3))
    assert cubins.code_hash(made) != before


def test_a_name_is_the_same_in_every_process():
    script = (
        "from qsa.kernels.cuda.toolchain import cubins\n"
        "from qsa.kernels.cuda.attend_exact import kernel\n"
        "made = kernel.build.build(4, 4, 2, 12, 3, 1)\n"
        "print(cubins.key(made, (1, 2), (9, 0)))\n"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body[:3] + b"?" + body[4:], lambda body: b""])
def test_only_whole_code_is_read(cache, damage):
    made = cubins.MachineCode(bytes(range(200)), "entry")
    cubins.keep("a" * 32, made)
    assert cubins.find("a" * 32) == made and [path.name for path in cache.iterdir()] == ["a" * 32]
    (cache / ("a" * 32)).write_bytes(damage((cache / ("a" * 32)).read_bytes()))
    assert cubins.find("a" * 32) is None


def test_the_disk_may_be_off_or_closed(cache, monkeypatch):
    cache.parent.chmod(0o700)
    (cache.parent / "cubins").write_bytes(b"a file where the folder would be")
    cubins.keep("b" * 32, cubins.MachineCode(b"code", "entry"))
    assert cubins.find("b" * 32) is None
    monkeypatch.setenv(cubins.OFF, "0")
    assert cubins.folder() is None and cubins.find("b" * 32) is None


def test_what_one_process_compiled_the_next_one_loads(monkeypatch):
    from cuda.bindings import driver as bindings

    compiled, loaded = [], []

    def machine_code(kernel, kinds, capability):
        compiled.append((kernel.py_func.__name__, kinds, capability))
        return cubins.MachineCode(b"machine code", "mangled")

    monkeypatch.setattr(driver, "chosen", lambda: SimpleNamespace(machine_code=machine_code))
    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda code, *rest: (loaded.append(code), (0, 5))[1])
    monkeypatch.setattr(bindings, "cuLibraryGetKernel", lambda library, name: (0, 77 if name == b"mangled" else 0))
    for _ in range(2):
        monkeypatch.setattr(driver, "_functions", {})
        assert driver.function_of(build(1), TYPES, 0, CAPABILITY).handle == 77
    assert compiled == [("counted", TYPES, CAPABILITY)] and loaded == [b"machine code"] * 2
