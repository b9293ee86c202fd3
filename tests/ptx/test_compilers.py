"""The choice of the compiler by QSA_COMPILER, its table of verdicts, and what the successor is mended of."""

import json
import os
import subprocess
import sys

import pytest

from qsa.kernels.cuda.toolchain import choice

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
from qsa.kernels.cuda.ptxcheck import check, table
from support import breaking_compiler

if check.find_ptxas() is None:
    pytest.skip("ptxas is missing (extra cuda12 or cuda13)", allow_module_level=True)

SUCCESSOR = "numba-cuda-mlir"


def run(program, compiler, *arguments):
    """A Python program in a process whose QSA_COMPILER is ``compiler``."""
    command = [sys.executable, *([program] if program == "-m" else ["-c", program]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {choice.VARIABLE: compiler})


def test_unset_and_empty_are_the_default():
    assert choice.compiler_name({}) == choice.compiler_name({"QSA_COMPILER": ""}) == "numba-cuda"
    assert [choice.compiler_name({"QSA_COMPILER": name}) for name in choice.COMPILERS] == list(choice.COMPILERS)


def test_another_value_is_named():
    with pytest.raises(ValueError, match="QSA_COMPILER = 'nvcc': allowed are numba-cuda and numba-cuda-mlir"):
        choice.compiler_name({"QSA_COMPILER": "nvcc"})


def test_a_compiler_that_is_not_installed_is_named(monkeypatch):
    """The backend takes an ImportError as its own absence and says why."""
    name = "qsa.kernels.cuda.toolchain.numba_cuda_mlir"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("qsa.kernels.cuda.toolchain.numba_cuda_mlir", raising=False)
    monkeypatch.setitem(sys.modules, "numba_cuda_mlir", None)
    with pytest.raises(ImportError, match=f"QSA_COMPILER = '{SUCCESSOR}': not installed .pip install {SUCCESSOR}.: "):
        choice.load(SUCCESSOR)


def test_a_wrong_choice_ends_the_command():
    done = run("-m", "nvcc", "qsa.kernels.cuda.ptxcheck")
    assert done.returncode == 2 and "QSA_COMPILER = 'nvcc': allowed are" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_arguments_of_the_table_are_named(capsys):
    for arguments, text in (
        (["--target", "sm_70"], "'sm_70': allowed are sm_75, "),
        (["--kernels", "none"], "--kernels: none: allowed are append_index, "),
    ):
        with pytest.raises(SystemExit) as caught:
            table.main(arguments)
        assert caught.value.code == 2 and text in capsys.readouterr().err


def test_the_table_of_the_default_compiler(tmp_path, capsys):
    """A row is compiled once; the file gives it back while sources, compiler and target are the same."""
    path = tmp_path / "table.json"
    arguments = ["--kernels", "last_cells", "--json", str(path)]
    assert table.main(arguments) == 0
    said = capsys.readouterr()
    assert "numba-cuda, sm_90\n| kernel | verdict |" in said.out and "1 of 1 compile, 1 pass." in said.out
    assert "1 of 1: last_cells" in said.err
    row = next(line for line in said.out.splitlines() if line.startswith("| `last_cells` | passed |"))
    assert table.main(arguments) == 0
    again = capsys.readouterr()
    assert row in again.out and not again.err
    kept = json.loads(path.read_text())
    kept["key"] = "others"
    path.write_text(json.dumps(kept))
    assert table.main(arguments) == 0 and "1 of 1: last_cells" in capsys.readouterr().err


def test_a_verdict_says_what_is_wrong():
    found = [
        table.Verdict("one", registers=32, seconds=1.2),
        table.Verdict("two", inexact=("fma.rn.f32",), missing=("mma",), spilled=True, registers=9, stack=8, spills=4),
        table.Verdict("three", error="TypeError: no"),
    ]
    assert [one.passed for one in found] == [True, False, False]
    text = table.lines(found)
    assert text[2] == "| `one` | passed | 32 | 0 | 0 | 1 |"
    assert text[3] == "| `two` | inexact: fma.rn.f32; lacks mma; spills | 9 | 8 | 4 | 0 |"
    assert text[4] == "| `three` | does not compile: TypeError: no | | | | 0 |"
    assert text[-1] == "2 of 3 compile, 1 pass."


def test_a_compiler_that_breaks_ends_one_kernel_alone(monkeypatch):
    """Row ``sample`` ends its process; the next one is compiled in a new one."""
    monkeypatch.setattr(table, "verdict", breaking_compiler.verdict)
    done = []
    found = table.verdicts(["sample", "last_cells"], (9, 0), {}, done.append)
    assert [one.error for one in found] == ["the process of the compiler ended", ""] and done == found


SMALL = """
import json, os, re
import numpy as np
from qsa.kernels.cuda.ptxcheck import check
from qsa.kernels.cuda.toolchain import choice, compiler, driver, ptx
from qsa.kernels.cuda.toolchain.compiler import cuda, int32, int64, kernel, libdevice, uint32, uint64
from qsa.kernels.cuda.toolchain.host import Argument

ld, st, at = ptx.ld_global_i32, ptx.st_global_i64, ptx.global_base

@kernel(launch_bounds=(64, 2))
def small(x, y, numbers, n):
    base = ptx.shared_base(cuda.shared.array(0, int32))
    ptx.st_shared_i32(base, ld(at(x)))
    cuda.syncthreads()
    y[0] = libdevice.fmaxf(y[1], libdevice.fminf(y[2], libdevice.fmul_rn(y[3], y[4])))
    x[0, 1] = int32(numbers[1] + ptx.ld_shared_i32(base) + n)

@kernel()
def least(x, n):
    st(at(x), int64(min(uint32(ld(at(x))), uint32(ld(at(x) + 4)))))

@kernel()
def most(x, n):
    st(at(x), int64(max(uint64(n), uint64(ld(at(x))))))

@kernel()
def nan(x, n):
    score = ptx.ld_global_f32(at(x))
    if score != score:
        st(at(x), n)

@kernel()
def nested(x, n):
    held = ptx.ld_global_v2_i32(at(x)), ptx.ld_global_v2_i32(at(x) + 8)
    for i in range(n):
        st(at(x) + 16, int64(held[0][1] + held[1][0]))
        held = ptx.ld_global_v2_i32(at(x) + i * 8), held[0]

@kernel()
def shuffled(x, n):
    st(at(x), cuda.shfl_xor_sync(0xFFFFFFFF, n, 1))

words = (Argument(0, "int32", (3, 4)), Argument(1, "float32", (8,)))
launch = driver.PackedLaunch(driver.Function("small", None, 77), (1, 1, 1), (64, 1, 1), (*words, (8, 9), 7), 0, 1, 0)
launch.point([1000, 2000])
types = (*(compiler._array_type(w.dtype, len(w.shape), "C") for w in words), compiler.types.UniTuple(int64, 2), int64)
texts = {target: compiler.compile_ptx(small, types, target) for target in ((9, 0), (8, 0))}
text = texts[9, 0]
cubin, name = choice.chosen().machine_code(small, types, (9, 0))

@kernel(shared_memory_carveout=100)
def carved(x, n):
    st(at(x), n)

# What the driver is asked for when a kernel is loaded.
from cuda.bindings import driver as bindings

asked = []
os.environ["QSA_CUDA_CACHE"] = "0"
bindings.cuLibraryLoadData = lambda code, *rest: (asked.append(["load", code[:4].hex(), *rest]), (0, 5))[1]
bindings.cuLibraryGetKernel = lambda library, name: (asked.append(["kernel", library, name.decode()]), (0, 77))[1]
bindings.cuKernelSetAttribute = lambda a, value, *of: (asked.append([a.name, value, *map(int, of)]), (0,))[1]
matrix = (compiler._array_type("int32", 2, "C"), int64)
found = driver.function_of(carved, matrix, 3, (9, 0))
again = driver.function_of(carved, matrix, 3, (9, 0))
one = "void(int32[:, ::1], int64)"
print(json.dumps({
    "name": compiler.NAME,
    "instructions": check.instructions(text),
    "inexact": check.inexact_instructions(text),
    "targets": [re.search(r"\\.target (\\w+)", text)[1] for text in texts.values()],
    "bounds": ".maxntid 64" in text and ".minnctapersm 2" in text,
    "sizes": check.assemble(text, (9, 0)),
    "parameters": re.findall(r"\\.param \\.([a-z0-9]+)(?: \\.ptr[^,\\n]*)? \\w+_param_\\d+", text),
    "words": launch.words,
    "cubin": cubin[:4].hex(), "entry": f".entry {name}(" in text,
    "asked": asked, "found": [found.name, found.handle, again is found],
    "mended": [check.instructions(compiler.compile_ptx(k, one, (9, 0))) for k in (least, most, shuffled, nested, nan)],
}))
"""


@pytest.fixture(scope="module")
def small():
    pytest.importorskip("numba_cuda_mlir", reason=f"{SUCCESSOR} is not installed")
    done = run(SMALL, SUCCESSOR)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_successor_compiles_for_the_target_it_is_asked_for(small):
    """Inline assembly, dynamic shared memory, launch bounds; exact, and within the registers."""
    assert small["name"] == SUCCESSOR and small["targets"] == ["sm_90", "sm_80"] and small["bounds"]
    assert {"max.f32", "min.f32", "mul.rn.f32", "bar.sync", "ld.shared.b32"} <= set(small["instructions"])
    assert small["inexact"] == [] and (small["sizes"]["stack"], small["sizes"]["spills"]) == (0, 0)


def test_the_words_of_the_successor_are_its_parameters(small):
    """A pointer that is not used, address, offset, shape, strides in elements."""
    assert small["words"] == [0, 1000, 0, 3, 4, 4, 1, 0, 2000, 0, 8, 1, 8, 9, 7]
    assert len(small["parameters"]) == len(small["words"]) and set(small["parameters"]) <= {"u64", "b64"}


def test_what_is_loaded_is_what_the_table_speaks_of(small):
    """The machine code for the driver (an ELF file) is made of the same PTX, under the name that it is asked for."""
    assert small["cubin"] == "7f454c46" and small["entry"]


def test_a_kernel_is_loaded_as_a_library_and_once(small):
    """The driver's kernel of the compiled code, with the shared memory that the kernel wants."""
    load, kernel, carveout = small["asked"]
    assert load == ["load", "7f454c46", None, None, 0, None, None, 0]
    assert kernel[:2] == ["kernel", 5] and "carved" in kernel[2]
    assert carveout == ["CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT", 100, 77, 3]
    assert small["found"] == ["carved", 77, True]


def test_what_the_successor_compiles_wrongly_is_mended(small):
    """Unsigned min and max, both halves of a shuffled 64-bit integer, a tuple of tuples that is assigned twice, NaN."""
    least, most, shuffled, nested, nan = small["mended"]
    assert "min.u32" in least and "max.u64" in most
    assert shuffled.count("shfl.sync.bfly.b32") == 2
    # As nothing is unequal to itself but NaN, the whole test would be gone.
    assert "setp.num.f32" in nan and "st.global.b64" in nan
    assert "ld.global.v2.b32" in nested and not any(".local" in name for name in nested)
