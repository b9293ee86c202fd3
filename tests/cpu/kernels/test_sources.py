"""The sources that kernels can read: a change of any makes cached kernels and records out of date."""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qsa.golden import sources as records
from qsa.kernels import sources
from qsa.kernels.cpu.common import jit

FOLDERS = "kernels", "reference"


def frozen(folder):
    """{(file, name)} of the constants of ``reference`` that the files of ``folder`` take, as Python finds modules."""
    found = set()
    for path in (sources.root() / folder).rglob("*.py"):
        package = ".".join(("qsa", *path.parent.relative_to(sources.root()).parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                name = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(name, package) if node.level else name
                if not base.startswith("qsa.reference"):
                    continue
                for alias in node.names:
                    if alias.name.isupper():
                        found.add((base, alias.name))
                    elif (sources.root() / "/".join(base.split(".")[1:]) / f"{alias.name}.py").is_file():
                        modules[alias.asname or alias.name] = f"{base}.{alias.name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.isupper() and ast.unparse(node.value) in modules:
                found.add((modules[ast.unparse(node.value)], node.attr))
    root = sources.root()
    return {(Path(importlib.util.find_spec(m).origin).relative_to(root).as_posix(), name) for m, name in found}


CPU, CUDA = frozen("kernels/cpu"), frozen("kernels/cuda")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the kernels and the reference, as a package of its own; tests leave it as it was."""
    where = tmp_path_factory.mktemp("copy") / "qsa"
    for folder in FOLDERS:
        shutil.copytree(sources.root() / folder, where / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return where


def test_the_constants_looked_for_are_there():
    """Else the tests below would hold for nothing."""
    for known in (
        ("reference/block_scores.py", "TAIL_BONUS"),
        ("reference/sampler.py", "PICK"),
        ("reference/geometry.py", "REAL"),
        ("reference/formats.py", "GROUP"),
        ("reference/exact/scalar.py", "SCORE_LIMIT"),
        ("reference/exact/sampler.py", "MASS_BITS"),
    ):
        assert known in CPU
    assert len(CPU) > 15 and len(CUDA) > 15


@pytest.mark.parametrize(("file", "name"), sorted(CPU | CUDA))
def test_a_change_of_a_frozen_constant_is_seen(project, file, name):
    path = project / file
    before, stamp, fingerprint = path.read_bytes(), jit.stamp(project), records.fingerprint(project)
    assert stamp == jit.STAMP
    path.write_bytes(before + f"\n{name} = None\n".encode())
    try:
        after = records.fingerprint(project)
        assert records.changed(fingerprint, after) == [f"changed {file}"]
        assert after["reference"] != fingerprint["reference"] and after["kernels"] == fingerprint["kernels"]
        assert (jit.stamp(project) != stamp) or (file, name) not in CPU
    finally:
        path.write_bytes(before)


def test_the_stamp_covers_the_kernels_and_what_they_read():
    found = sources.reachable(["kernels/cpu"])
    here = {path.relative_to(sources.root()).as_posix() for path in (sources.root() / "kernels/cpu").rglob("*.py")}
    assert len(here) > 20 and here <= found.keys()
    assert {f"reference/{name}.py" for name in ("block_scores", "sampler", "geometry", "formats")} <= found.keys()
    assert len([name for name in found if name.startswith("reference/")]) > 15
    assert not any(name.startswith(("kernels/cuda/", "golden/", "engine/", "parity/")) for name in found)


def test_a_record_covers_the_kernels_and_what_they_read():
    found = records.fingerprint()["files"]
    for folder, least in (("kernels/cuda/", 60), ("reference/exact/", 13), ("reference/", 40)):
        assert len([name for name in found if name.startswith(folder)]) > least
    assert {f"reference/{name}.py" for name in ("block_scores", "sampler", "geometry", "formats")} <= found.keys()
    assert not any(
        name.startswith(("kernels/cpu/", "kernels/cuda/simulator/", "kernels/cuda/ptxcheck/")) for name in found
    )


BONUS = """
import numpy as np
from qsa.kernels.cpu.block_scores import _dead
from qsa.kernels.cpu.common import jit
out = np.zeros((1, 1), np.float32)
_dead(np.zeros((1, 1, 32), np.float32), np.zeros(32, np.float32), np.array([[0, 1, 0, 0]], np.int32), 4, out)
print(jit.__file__, out[0, 0], sum(_dead.stats.cache_hits.values()))
"""


def test_a_cached_kernel_follows_a_change_of_the_bonus(project, tmp_path):
    """J8. In processes of their own: the kernel is compiled, taken from the cache, and again after the change."""
    environment = os.environ | {"PYTHONPATH": str(project.parent), "NUMBA_CACHE_DIR": str(tmp_path)}
    path = project / "reference" / "block_scores.py"
    before = path.read_text(encoding="utf-8")
    got = []
    try:
        for bonus in ("1e9", "1e9", "2e9"):
            path.write_text(before.replace("TAIL_BONUS = 1e9", f"TAIL_BONUS = {bonus}"), encoding="utf-8")
            run = subprocess.run(
                [sys.executable, "-c", BONUS], env=environment, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0, run.stderr
            file, value, hits = run.stdout.split()
            assert Path(file).is_relative_to(project)
            got.append((float(value), int(hits)))
    finally:
        path.write_text(before, encoding="utf-8")
    assert got == [(1e9, 0), (1e9, 1), (2e9, 0)]


IMPORTS = {
    "beside it": ("from .near import x", {"a/near.py"}),
    "a module of its package": ("from . import near", {"a/near.py", "a/__init__.py"}),
    "a name of its package": ("from . import x", {"a/__init__.py"}),
    "a folder up": ("from ..b.far import x", {"b/far.py"}),
    "two modules of a folder": ("from ..b import far, deep", {"b/far.py", "b/deep/__init__.py", "b/deep/inner.py"}),
    "under another name": ("from ..b import far as other", {"b/far.py"}),
    "absolute": ("from qsa.b.far import x", {"b/far.py"}),
    "absolute, a module": ("from qsa.b import far", {"b/far.py"}),
    "absolute, without from": ("import os, qsa.a.near as near", {"a/near.py", "a/__init__.py"}),
    "in a function": ("def f():\n    if f:\n        from .near import x", {"a/near.py"}),
    "where the import may fail": ("try:\n    import none\nexcept ImportError:\n    from .near import x", {"a/near.py"}),
    "through others": ("from ..b.deep import x", {"b/deep/__init__.py", "b/deep/inner.py", "b/far.py"}),
    "in a circle": ("from .circle import x", {"a/circle.py"}),
    "of other projects": ("import os\nfrom b import far\nfrom other.b import far\nimport b.far", set()),
    "missing": ("from .none import x\nfrom .....none import x\nimport qsa.none", set()),
    "only said": ("'from .near import x'  # from .near import x", set()),
}


@pytest.mark.parametrize(("text", "more"), IMPORTS.values(), ids=IMPORTS)
def test_imports_are_followed(tmp_path, text, more):
    files = {
        "a/first.py": text,
        "a/__init__.py": "x = 1",
        "a/near.py": "x = 1",
        "a/circle.py": "from .first import x\nfrom .circle import x",
        "a/unread.py": "x = 1",
        "b/far.py": "x = 1",
        "b/deep/__init__.py": "from .inner import x",
        "b/deep/inner.py": "from ..far import x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "start" / "sub").mkdir(parents=True)
    (tmp_path / "start" / "sub" / "module.py").write_text("from ...a.first import x")
    assert sources.reachable(["start"], tmp_path).keys() == {"start/sub/module.py", "a/first.py"} | more


def test_a_folder_without_sources_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "none"):
        with pytest.raises(ValueError, match=f"folders: '{folder}': a folder with Python files"):
            sources.reachable([folder], tmp_path)
