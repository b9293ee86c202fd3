"""What the compiler makes of the CUDA kernels, read without a GPU."""

import re

import pytest

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
from numba.cuda import dispatcher

from qsa.kernels.cuda.ptxcheck import check as ptxcheck
from qsa.kernels.cuda.ptxcheck import registry
from qsa.kernels.cuda.toolchain.compiler import NAME, compile_ptx, cuda, float32, kernel, libdevice
from qsa.kernels.cuda.toolchain.ptx import global_base, ld_global_f32, st_global_f32, start_next, wait_for_earlier
from qsa.kernels.cuda.toolchain.ptx_rows import PtxRow

if NAME != "numba-cuda" or not hasattr(cuda, "compile_ptx"):
    pytest.skip("numba-cuda is missing (extra cuda12 or cuda13)", allow_module_level=True)
if ptxcheck.find_ptxas() is None:
    pytest.skip("ptxas is missing (extra cuda12 or cuda13)", allow_module_level=True)

DECLARED = registry.registered()
ROWS = [row for _, row in DECLARED]


@pytest.fixture(scope="session")
def folder(request):
    return request.config.cache.mkdir("ptx")


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_kernel(row, folder):
    """Compiles for every target; an exact kernel holds no inexact float instruction, a hot one no stack and no spill
    but what the table names."""
    for target, report in ptxcheck.reports(row, folder).items():
        name = f"{row.name} for sm_{target[0]}{target[1]}"
        assert not report.missing, f"{name}: lacks {report.missing}"
        assert not report.early, f"{name}: before it waits for earlier launches: {report.early}"
        if row.exact:
            assert not report.inexact, f"{name}: {report.inexact}"
        if row.hot:
            stack, spills = row.spilled.get(target, (0, 0))
            assert report.stack <= stack, f"{name}: stack {report.stack}, {stack} known"
            assert report.spills <= spills, f"{name}: spills {report.spills}, {spills} known"
        # A block of the kernel's own size must fit the 65,536 registers of a multiprocessor.
        bounds = row.kernel.targetoptions.get("launch_bounds")
        if bounds:
            assert bounds[0] * report.registers <= 65536, f"{name}: {report.registers} registers"


def test_every_kernel_is_in_the_table():
    """A file that defines a kernel has rows, each kernel function among them. The counts are those of today, so that a
    search that finds nothing cannot pass."""
    modules = registry.kernel_modules()
    assert len(modules) == 30 and len(ROWS) == 99 and len({row.name for row in ROWS}) == 99
    functions = 0
    for path in sorted(registry.ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(registry.ROOT).with_suffix("").parts)
        if name.startswith(("simulator.", "ptxcheck.", "toolchain.")):
            continue
        defined = set(re.findall(r"@kernel\(.*\)\n\s*def (\w+)", path.read_text()))
        held = {row.kernel.py_func.__name__ for module, row in DECLARED if module == name}
        assert defined == held, path.name
        functions += len(defined)
    assert functions >= 27


def test_the_check_finds_what_it_looks_for():
    """Contracted, contractible, approximate and float64 arithmetic, and a stack, in kernels made to have them."""

    @kernel()
    def fused(x):
        x[0] = x[0] * x[1] + x[2]

    @kernel()
    def approximate(x):
        x[0] = libdevice.fast_expf(x[0])

    @kernel()
    def doubled(x):
        x[0] = x[0] * 3 + x[1]

    @kernel()
    def summed(x):
        x[0] = x[0] + x[1]

    @kernel()
    def multiplied(x):
        x[0] = x[0] * x[1]

    @kernel()
    def apart(x):
        x[0] = libdevice.fadd_rn(libdevice.fmul_rn(x[0], x[1]), x[2])

    @kernel()
    def indexed(x):
        local = cuda.local.array(64, float32)
        for i in range(64):
            local[i] = x[i]
        for i in range(64):
            x[i] = local[int(x[64 + i])]

    signature, target = "void(float32[::1])", (8, 0)
    for wrong, text in (
        (fused, "fma"),
        (approximate, ".approx"),
        (doubled, ".f64"),
        (summed, "add.f32"),
        (multiplied, "mul.f32"),
    ):
        found = ptxcheck.inexact_instructions(compile_ptx(wrong, signature, target))
        assert any(text in name for name in found), (wrong.py_func.__name__, found)
    assert ptxcheck.inexact_instructions(compile_ptx(apart, signature, target)) == ()
    assert ptxcheck.assemble(compile_ptx(indexed, signature, target), target)["stack"] >= 256
    with pytest.raises(RuntimeError, match="ptxas"):
        ptxcheck.assemble("no PTX", target)


def test_what_a_kernel_does_before_it_waits_is_found():
    """Accesses, ends on some path, and an instruction that older targets do not have."""

    @kernel()
    def waits(x, n):
        start_next()
        wait_for_earlier()
        if n > 3:
            x[0] = x[1]

    @kernel()
    def reads(x, n):
        value = ld_global_f32(global_base(x))
        wait_for_earlier()
        x[0] = value

    @kernel()
    def writes_on_one_path(x, n):
        if n > 3:
            st_global_f32(global_base(x), float32(1))
        wait_for_earlier()
        x[0] = x[1]

    @kernel()
    def ends(x, n):
        if n > 3:
            wait_for_earlier()
            x[0] = x[1]

    signature = "void(float32[::1], int64)"
    found = {made: ptxcheck.before_wait(compile_ptx(made, signature, (9, 0))) for made in (waits, reads, ends)}
    assert found == {waits: (), reads: ("ld.global.f32",), ends: ("ret",)}
    assert ptxcheck.before_wait(compile_ptx(writes_on_one_path, signature, (9, 0))) == ("st.global.f32",)
    for made in (waits, ends):
        row = PtxRow("row", made, signature)
        older, newer = compile_ptx(made, signature, (8, 9)), compile_ptx(made, signature, (9, 0))
        assert "griddepcontrol" not in older and ptxcheck.early(row, older, (8, 9)) == ()
        assert ptxcheck.early(row, newer, (9, 0)) == (() if made is waits else ("ret",))
    # One that never waits is never launched early, and must not hold the instruction by way of a device function.
    row = PtxRow("row", ptxcheck_free, signature)
    assert ptxcheck.early(row, compile_ptx(waits, signature, (9, 0)), (9, 0)) == ("griddepcontrol",)


@kernel()
def ptxcheck_free(x, n):
    x[0] = x[1]


@pytest.mark.parametrize(
    "body, found",
    [
        ("griddepcontrol.wait; ld.global.f32 %f1, [%rd1]; ret;", ()),
        ("ld.param.u64 %rd1, [p]; ld.shared.f32 %f1, [%r1]; griddepcontrol.wait; ret;", ()),
        ("ld.f32 %f1, [%rd1]; griddepcontrol.wait; ret;", ("ld.f32",)),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16; griddepcontrol.wait; ret;", ("cp.async.cg.shared.global",)),
        ("redux.sync.max.s32 %r1, %r2, -1; griddepcontrol.wait; ret;", ()),
        ("@%p1 griddepcontrol.wait; ret;", ("ret",)),
        ("@%p1 ret; griddepcontrol.wait; ret;", ("ret",)),
        ("griddepcontrol.launch_dependents;", ("end",)),
        ("bra $L1;\n$L0: ld.global.f32 %f1, [%rd1]; ret;\n$L1: griddepcontrol.wait; bra $L0;", ()),
        ("@%p1 bra $L1;\n{ griddepcontrol.wait; }\nret;\n$L1: atom.global.add.u32 %r1, [%rd1], 1; ret;",
         ("atom.global.add.u32", "ret")),
    ],
)  # fmt: skip
def test_paths_to_the_wait(body, found):
    assert ptxcheck.before_wait(f".visible .entry kernel(\n.param .u64 p)\n{{\n.reg .b32 %r<9>;\n{body}\n}}\n") == found


def test_what_the_compiler_asks_is_put_back_after_an_error():
    """``compile_ptx`` answers numba-cuda's question for the current device itself, only while it compiles."""

    @kernel()
    def wrong(x):
        x[0] = no_such_name  # noqa: F821

    asked = dispatcher.get_current_device
    with pytest.raises(Exception, match="no_such_name"):
        compile_ptx(wrong, "void(float32[::1])", (8, 0))
    assert dispatcher.get_current_device is asked


@pytest.mark.parametrize(
    ("name", "inexact"),
    [
        *((f"{name}.{form}", True) for name in ("add", "sub", "mul") for form in ("f32", "sat.f32", "rz.f32", "f32x2")),
        *((name, True) for name in ("mad.f32", "mad.rn.f32", "div.full.f32", "fma.rn.f32", "mul.f16", "add.bf16x2")),
        *((f"{name}.rn.f32", False) for name in ("add", "sub", "mul", "div", "sqrt")),
        *((name, False) for name in ("add.s32", "sub.s64", "mul.wide.s32", "mul.lo.s64", "mad.lo.s32", "max.f32")),
        *((name, False) for name in ("cvt.rn.f32.s32", "setp.lt.f32", "neg.f32")),
    ],
)
def test_instructions_by_name(name, inexact):
    """In a line of its own, behind a predicate, and in inline assembly."""
    for line in ("\t{} \t%f1, %f2, %f3;", "@%p1 {} %f1, %f2, %f3;", "\t// begin inline asm\n\t{{ {} %f1, %f2, %f3; }}"):
        assert ptxcheck.inexact_instructions(line.format(name)) == ((name,) if inexact else ())
