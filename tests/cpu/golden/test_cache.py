"""Results of the reference that are kept: what they are kept under, and when they are computed anew."""

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

from qsa.golden import cache as caching
from qsa.golden import recompute
from qsa.golden.cache import Cache
from qsa.golden.families import produce
from qsa.golden.store import Store
from qsa.kernels import sources

RECIPE = "select:rule=blocks,scores=levels,context=64,rows=1,tail=0,seed={}"
COMMON = {"sources": "1", "python": "3"}


class Computing:
    """The reference in this process, with the names that it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, cases):
        self.asked += cases
        return [recompute.compute_one(name, recipe) for name, recipe in cases.items()]


@pytest.fixture
def folder(tmp_path):
    """A folder of two goldens, ``a`` and ``b``."""
    store = Store(tmp_path / "records")
    for seed, name in enumerate("ab"):
        store.regenerate({name: RECIPE.format(seed)}, produce)
        store.accept(name, "a test")
    return store.folder


def checked(folder, cache, names="ab", **options):
    """(the outcomes, the names that were computed)."""
    computing = Computing()
    found = list(recompute.check(folder, list(names), cache, compute=computing, **options))
    return found, sorted(computing.asked)


def statuses(found):
    return {one.name: one.status for one in found}


def test_nothing_is_computed_twice(folder, tmp_path):
    cache = Cache(tmp_path / "cache", COMMON)
    first, computed = checked(folder, cache)
    assert computed == ["a", "b"] and [one.stored for one in first] == [False, False]
    second, computed = checked(folder, Cache(tmp_path / "cache", COMMON))
    assert computed == [] and [one.stored for one in second] == [True, True]
    assert statuses(first) == statuses(second) == {"a": "equal", "b": "equal"}


def test_fresh_computes_all_and_keeps_it(folder, tmp_path):
    cache = Cache(tmp_path / "cache", COMMON)
    for _ in range(2):
        assert checked(folder, cache, fresh=True)[1] == ["a", "b"]
    assert checked(folder, cache)[1] == []
    assert checked(folder, None)[1] == ["a", "b"]


def test_a_stored_result_is_held_to_the_record_of_today(folder, tmp_path):
    """The result of the reference is kept, not the verdict on it."""
    cache = Cache(tmp_path / "cache", COMMON)
    checked(folder, cache)
    store = Store(folder)

    def other(family, recipe):
        made = produce(family, recipe)
        made.outputs["ids"][0, 0] += 1
        return made

    store.regenerate({"a": RECIPE.format(0)}, other)
    store.accept("a", "a wrong golden")
    found, computed = checked(folder, cache)
    assert computed == [] and statuses(found) == {"a": "differs", "b": "equal"}
    assert found[0].lines[0].startswith("output ids: hash")


def project(tmp_path):
    """A copy of the sources that the key covers, and of the model's files."""
    where = tmp_path / "project"
    for name, content in sources.reachable(caching.STARTS).items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(content)
    shutil.copytree(caching.MODEL, where / "golden" / "model", dirs_exist_ok=True)
    return where


CHANGED_FILES = [
    "reference/exact/scalar.py",
    "reference/geometry.py",
    "golden/inputs.py",
    "golden/families/select.py",
    "golden/record.py",
    "model/generate.py",
    "kernels/switches.py",
    "golden/model/model.safetensors",
    "golden/model/prompt-math.txt",
]


def test_a_change_of_any_file_that_is_read_computes_anew(folder, tmp_path, monkeypatch):
    where = project(tmp_path)
    sources_hash, files_hash = caching.sources_hash, caching.files_hash
    monkeypatch.setattr(caching, "sources_hash", lambda: sources_hash(where))
    monkeypatch.setattr(caching, "files_hash", lambda: files_hash(where / "golden" / "model"))
    assert caching.common_key()["sources"] == sources_hash() and caching.common_key()["weights"] == files_hash()
    checked(folder, Cache(tmp_path / "cache"))
    assert checked(folder, Cache(tmp_path / "cache"))[1] == []
    for name in CHANGED_FILES:
        path = where / name
        before = path.read_bytes()
        path.write_bytes(before[:-1] + b"\n#" if name.endswith(".py") else before[:-1] + bytes([before[-1] ^ 1]))
        assert checked(folder, Cache(tmp_path / "cache"), "a")[1] == ["a"], name
        path.write_bytes(before)
        assert checked(folder, Cache(tmp_path / "cache"), "a")[1] == [], name


MACHINE = {
    "python": lambda m: m.setattr(sys, "version", "3.99.0 (other)"),
    "numpy": lambda m: m.setattr(caching.np, "__version__", "9.9.9"),
    "blas": lambda m: m.setattr(caching.np, "show_config", lambda mode: {"Build Dependencies": {"blas": {}}}),
    "packages": lambda m: m.setattr(caching.importlib.metadata, "version", lambda name: "9.9.9"),
    "processor": lambda m: m.setattr(caching.platform, "machine", lambda: "pdp11"),
    "system": lambda m: m.setattr(caching.platform, "libc_ver", lambda: ("glibc", "1.0")),
    "environment": lambda m: m.setenv("OPENBLAS_CORETYPE", "Prescott"),
}


def test_a_change_of_the_machine_computes_anew(folder, tmp_path):
    checked(folder, Cache(tmp_path / "cache"))
    before = caching.common_key()
    assert set(before) == {"sources", "weights", *MACHINE}
    for part, change in MACHINE.items():
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            now = caching.common_key()
            assert {name for name in now if now[name] != before[name]} == {part}
            assert checked(folder, Cache(tmp_path / "cache", now), "a")[1] == ["a"], part
        assert checked(folder, Cache(tmp_path / "cache", before), "a")[1] == [], part


def test_another_recipe_computes_anew(folder, tmp_path):
    cache = Cache(tmp_path / "cache", COMMON)
    checked(folder, cache)
    store = Store(folder)
    store.regenerate({"a": RECIPE.format(7)}, produce)
    store.accept("a", "another recipe")
    assert checked(folder, cache)[1] == ["a"]


def test_a_processor_is_known_by_its_features():
    """Two that have one name may differ in what BLAS chooses by."""
    text = Path("/proc/cpuinfo")
    if not text.is_file():
        pytest.skip("this system has no /proc/cpuinfo")
    before = caching.processor()
    for old, new, differs in (("sse2", "sse9", True), ("cpu MHz\t\t: ", "cpu MHz\t\t: 1", False)):
        with pytest.MonkeyPatch.context() as patch:
            content = text.read_text()
            if old not in content:
                continue
            changed = content.replace(old, new)
            patch.setattr(Path, "read_text", lambda self, text=changed, **options: text)
            assert (caching.processor() != before) == differs


def test_every_package_that_the_sources_import_is_part_of_the_key():
    imported = set()
    for source in sources.reachable(caching.STARTS).values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    # The training script's own: no golden is made by it.
    foreign = imported - set(sys.stdlib_module_names) - {"qsa", "torch", "triton"}
    assert foreign and {name.replace("_", "-") for name in foreign} <= set(caching.PACKAGES)


def damage(change):
    def act(path):
        entry = json.loads(path.read_text())
        change(entry)
        path.write_text(json.dumps(entry))

    return act


def other_hash(entry):
    entry["record"]["outputs"]["ids"]["hash"] = "0" * 32


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "no entry": lambda path: path.write_text("[1]"),
    "no key": damage(lambda entry: entry.pop("key")),
    "another key": damage(lambda entry: entry["key"].update(sources="2")),
    "another hash": damage(other_hash),
    "no record": damage(lambda entry: entry.update(record={})),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_entry_is_computed_anew(folder, tmp_path, kind):
    cache = Cache(tmp_path / "cache", COMMON)
    checked(folder, cache)
    DAMAGES[kind](cache.path("a", RECIPE.format(0)))
    found, computed = checked(folder, cache)
    assert computed == ["a"] and statuses(found) == {"a": "equal", "b": "equal"}
    if kind == "a folder":
        assert "could not be stored" in cache.trouble
    else:
        assert checked(folder, cache)[1] == [] and not cache.trouble


def test_an_entry_of_another_golden_is_not_taken(folder, tmp_path):
    cache = Cache(tmp_path / "cache", COMMON)
    checked(folder, cache)
    shutil.copy(cache.path("b", RECIPE.format(1)), cache.path("a", RECIPE.format(0)))
    assert checked(folder, cache)[1] == ["a"]


def test_few_entries_of_one_golden_are_kept(folder, tmp_path):
    for number in range(caching.KEPT + 3):
        checked(folder, Cache(tmp_path / "cache", {"sources": str(number)}), "a")
    left = list((tmp_path / "cache").glob("a.*.json"))
    assert len(left) == caching.KEPT
    # The newest are kept.
    assert checked(folder, Cache(tmp_path / "cache", {"sources": str(caching.KEPT + 2)}), "a")[1] == []


def test_one_bad_golden_does_not_stop_the_others(folder, tmp_path):
    path = folder / "a.json"
    path.write_text(path.read_text().replace('"axes": 1', '"axes": 0'))
    found, computed = checked(folder, Cache(tmp_path / "cache", COMMON), ["a", "none", "b"])
    assert statuses(found) == {"a": "damaged", "none": "missing", "b": "equal"} and computed == ["b"]
    assert "a.json" in found[0].lines[0]


def test_an_error_of_the_reference_is_its_own_goldens(folder, tmp_path, monkeypatch):
    def broken(family, recipe):
        if recipe["seed"] == 0:
            raise ZeroDivisionError("no such thing")
        return produce(family, recipe)

    monkeypatch.setattr(recompute, "produce", broken)
    cache = Cache(tmp_path / "cache", COMMON)
    found, _ = checked(folder, cache)
    assert statuses(found) == {"a": "differs", "b": "equal"}
    assert next(one for one in found if one.name == "a").lines == ["ZeroDivisionError: no such thing"]
    # What failed is not kept.
    assert checked(folder, cache)[1] == ["a"]


def test_the_longest_begin_first_and_the_plan_says_what_they_take(folder, tmp_path):
    cache, plans = Cache(tmp_path / "cache", COMMON), []
    for recipe, name, seconds in ((RECIPE.format(0), "a", 1.0), (RECIPE.format(1), "b", 5.0)):
        cache.store(recompute.compute_one(name, recipe).found, seconds)
    found, _ = checked(folder, Cache(tmp_path / "cache", {"sources": "2"}), on_plan=plans.append)
    assert [one.name for one in found] == ["b", "a"] and plans == [{"a": 1.0, "b": 5.0}]


def test_processes_of_one_thread_compute(folder, monkeypatch):
    """Real processes: what they give is what this process gives, and they have one BLAS thread."""
    seen = []

    class Pool(recompute.ProcessPoolExecutor):
        def submit(self, *arguments):
            seen.append([recompute.os.environ[name] for name in recompute.THREADS])
            return super().submit(*arguments)

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(recompute, "ProcessPoolExecutor", Pool)
    found = list(recompute.check(folder, ["a", "b"]))
    assert statuses(found) == {"a": "equal", "b": "equal"}
    assert seen == [["1"] * len(recompute.THREADS)] * 2 and recompute.os.environ["OMP_NUM_THREADS"] == "3"


def test_where_the_entries_are(monkeypatch, tmp_path):
    monkeypatch.delenv("QSA_CACHE", raising=False)
    if (sources.root() / "pyproject.toml").is_file():
        assert caching.default_folder() == sources.root() / "build" / "cache" / "goldens"
    monkeypatch.setattr(caching, "root", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert caching.default_folder() == tmp_path / "caches" / "qsa-parity" / "goldens"
    monkeypatch.setenv("QSA_CACHE", str(tmp_path / "mine"))
    assert caching.default_folder() == tmp_path / "mine" / "goldens"
