"""Launches with packed arguments, without a GPU: what is packed is what a compiled kernel takes."""

import ctypes
import re

import numpy as np
import pytest

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
from qsa.kernels.cuda.attend_exact.kernel import build
from qsa.kernels.cuda.attend_few.kernel import build as few_build
from qsa.kernels.cuda.block_scores_kernels import KEYS, LEAST, one_row
from qsa.kernels.cuda.sampler_kernels.kernel import TURNS, sampler
from qsa.kernels.cuda.toolchain import compiler, driver
from qsa.kernels.cuda.toolchain.compiler import NAME
from qsa.kernels.cuda.toolchain.host import Argument, Numbers

if NAME != "numba-cuda":
    pytest.skip("another compiler", allow_module_level=True)

FUNCTION = driver.Function("some_kernel", None, 77)
MATRIX = Argument(0, "int32", (3, 4))


def packed(*args, **options):
    sizes = {"grid": (5, 2, 1), "block": (64, 1, 1), "shared": 0, "cluster": 1} | options
    return driver.PackedLaunch(FUNCTION, sizes["grid"], sizes["block"], args, sizes["shared"], sizes["cluster"], 0)


def kernels():
    """(kernel, arguments as its operation's plan has them)."""
    q, ids, steps = Argument(0, "float32", (2, 24, 256)), Argument(1, "int32", (2, 40)), Argument(2, "int32", (2, 4))
    slots, scratch = Argument(2, "int32", (8,)), Argument(4, "int64", (100,))
    yield build.build(4, 4, 2, 12, 3, 1), (q, ids, steps, slots, Numbers(0, 7, 28), 0, 4, 32, scratch, q)
    by_table = q, ids, steps, slots, Argument(5, "int64", (9, 8)), 9, 4, 32, scratch, q
    yield build.build(4, 4, 2, 12, 3, 1, tabled=True), by_table
    few = few_build.build(2, 12, 3, 1, True)
    yield few, (q, ids, steps, Numbers(0, 7, 7), 13, 160, 40, 161320, 52429, q)
    keys, dead = Argument(1, "float32", (9, 128)), Argument(2, "float32", (128,))
    queries, out = Argument(0, "float32", (1, 4, 128)), Argument(4, "float32", (1, 9))
    yield one_row.build(KEYS, LEAST), (queries, keys, dead, steps, out, 1, 9, 4)
    one = {name: Argument(0, name, (2,)) for name in ("int32", "uint64", "int64")}
    lists = [Argument(0, "int32", (2, 64)), Argument(0, "uint64", (2, 64)), one["int32"]]
    inputs = (out, steps, ids, one["int32"], one["int32"], one["uint64"], one["int64"], ids, one["int32"], *lists)
    yield sampler.build(TURNS), (*inputs, (256, 256, 1, 1, 16, 400, 0))


@pytest.mark.parametrize("number", range(4))
def test_the_words_are_the_parameters_of_the_compiled_kernel(number):
    """As many as its PTX has, all of 64 bits: the driver reads each where it lies."""
    kernel, args = list(kernels())[number]
    types = tuple(compiler._type_of(kernel, value) for value in args)
    text = compiler.compile_ptx(kernel, types, (9, 0))
    parameters = re.findall(r"\.param \.([a-z0-9]+)(?: \.ptr[^,\n]*)? \w+_param_\d+", text)
    assert parameters and set(parameters) <= {"u64", "b64"}
    assert len(parameters) == len(packed(*args).words)


def test_arrays_are_packed_as_numba_passes_them():
    """Two unused pointers, size, item size, address, shape, strides."""
    launch = packed(MATRIX, 7, Argument(1, "float32", (2,), first=3, row=40), (8, 9))
    launch.point([1000, 2000])
    assert launch.words == [0, 0, 12, 4, 1000, 3, 4, 16, 4, 7, 0, 0, 2, 4, 2120, 2, 4, 8, 9]


def test_the_parameters_point_at_the_words():
    launch = packed(MATRIX, 7)
    pointers = (ctypes.c_void_p * len(launch.words)).from_address(launch.parameters)
    launch.point([1000])
    assert [ctypes.c_int64.from_address(pointer).value for pointer in pointers] == launch.words


def test_numbers_of_a_call_are_padded():
    launch = packed(Numbers(7, 14, 10), 5)
    launch.number(range(14))
    assert launch.words == [*range(7, 14), 0, 0, 0, 5]


def test_small_numbers_are_packed_in_their_own_bits():
    """A float32 and a bool lie in the first bytes of their word."""
    words = packed(np.float32(1.5), True, -1, np.int32(-2), 2.5).words
    assert words == [0x3FC00000, 1, -1, 0xFFFFFFFE, 0x4004000000000000]


def test_a_launch_gives_the_driver_its_sizes_and_the_stream():
    launch, calls = packed(MATRIX, grid=(5, 2, 1), block=(32, 8, 1), shared=100), []
    launch._launch = lambda *arguments: calls.append(arguments) or (0,)
    launch.submit(99)
    ((handle, *rest),) = calls
    assert int(handle) == 77 and rest == [5, 2, 1, 32, 8, 1, 100, 99, launch.parameters, 0]


def test_a_launch_in_clusters_has_a_configuration():
    launch, calls = packed(MATRIX, grid=(26, 1, 1), block=(384, 1, 1), shared=48 * 1024, cluster=13), []
    launch._launch_configured = lambda *arguments: calls.append(arguments) or (0,)
    launch.submit(99)
    ((configuration, handle, parameters, extra),) = calls
    assert (int(handle), parameters, extra) == (77, launch.parameters, 0)
    assert (configuration.gridDimX, configuration.blockDimX, configuration.sharedMemBytes) == (26, 384, 48 * 1024)
    assert int(configuration.hStream) == 99 and configuration.attrs[0].value.clusterDim.x == 13


@pytest.mark.parametrize("cluster", [1, 13])
def test_a_launch_that_starts_early_says_so_to_the_driver(monkeypatch, cluster):
    """With the sizes and the cluster that it has otherwise; only where its kernel waits itself."""
    sizes = {"grid": (26, 1, 1) if cluster > 1 else (5, 2, 1), "block": (64, 1, 1), "shared": 100, "cluster": cluster}
    launch = packed(MATRIX, **sizes)
    launch.start_early()
    assert not launch.early and (launch._configuration is None) == (cluster == 1)
    monkeypatch.setitem(globals(), "FUNCTION", FUNCTION._replace(waits=True))
    launch, calls = packed(MATRIX, **sizes), []
    launch.start_early()
    launch._launch_configured = lambda *arguments: calls.append(arguments) or (0,)
    launch.submit(99)
    ((configuration, handle, parameters, extra),) = calls
    assert launch.early and (int(handle), parameters, extra) == (77, launch.parameters, 0)
    grid = configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ
    assert (grid, configuration.blockDimX, configuration.sharedMemBytes) == (sizes["grid"], 64, 100)
    ids = [int(attribute.id) for attribute in configuration.attrs]
    kinds = compiler_driver().CUlaunchAttributeID
    early = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert ids == [int(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)] * (cluster > 1) + [int(early)]
    assert configuration.attrs[-1].value.programmaticStreamSerializationAllowed == 1
    assert configuration.numAttrs == len(ids)


def compiler_driver():
    from cuda.bindings import driver as bindings

    return bindings


@pytest.mark.parametrize("version, early", [(12020, False), (12030, True), (13000, True)])
def test_an_older_driver_starts_nothing_early(monkeypatch, version, early):
    monkeypatch.setattr(compiler_driver(), "cuDriverGetVersion", lambda: (0, version))
    driver.launches_early.cache_clear()
    assert driver.launches_early() == early
    driver.launches_early.cache_clear()


def test_a_failed_launch_names_the_kernel_and_its_sizes(monkeypatch):
    launch, made = packed(MATRIX), []
    launch._launch = lambda *arguments: (1,)
    with pytest.raises(RuntimeError, match=r"some_kernel, grid \(5, 2, 1\)"):
        launch.submit(0)
    # A thread without a context gets one, and the launch is made again.
    monkeypatch.setattr(driver, "_make_current", made.append)
    answers = [driver.NO_CONTEXT, 0]
    launch._launch = lambda *arguments: (answers.pop(0),)
    launch.submit(0)
    assert made == [0] and not answers
