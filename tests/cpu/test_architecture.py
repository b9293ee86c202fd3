"""The packages import one another in one direction, and the project file names all of them."""

import ast
import tomllib

import pytest

from support.type_check import PACKAGES, ROOT

MAY_IMPORT = {
    "reference": set(),
    "kernels": {"reference"},
    "model": {"reference", "kernels"},
    "engine": {"reference", "kernels", "model"},
    "golden": {"reference", "kernels", "model"},
    "parity": {"reference", "kernels", "model", "engine", "golden"},
}
"""Package -> the packages that its files import. ``engine`` and ``golden`` do not know each other."""

FEWEST = {"reference": 60, "kernels": 250, "model": 40, "engine": 60, "golden": 80, "parity": 180}
"""Imports of a package's own project that must at least have been looked at."""


def imports(source, level_of_file):
    """(line, name or None, levels too far) of each import of this project: ``name`` the package of an absolute import,
    None for a relative one; ``levels too far``: a relative import that leaves its package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, None, node.level > level_of_file
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "qsa":
            names = [node.module] if "." in node.module else [f"qsa.{alias.name}" for alias in node.names]
            for name in names:
                yield node.lineno, name.split(".")[1], False
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "qsa":
                    yield node.lineno, (alias.name + ".").split(".")[1], False


def faults(package, name, source):
    """(number of imports looked at, what is wrong with them) of the file ``name``, relative to its package."""
    found = list(imports(source, name.count("/") + 1))
    bad = []
    for line, imported, too_far in found:
        if too_far:
            bad.append(f"{package}/{name}:{line}: a relative import leaves the package: import it as qsa.*")
        elif imported == package:
            bad.append(f"{package}/{name}:{line}: imports its own package as qsa.{package}: import it relatively")
        elif imported is not None and imported not in MAY_IMPORT[package]:
            bad.append(f"{package}/{name}:{line}: imports qsa.{imported}: allowed are {sorted(MAY_IMPORT[package])}")
    return len(found), bad


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_in_one_direction(package):
    seen, bad = 0, []
    for path in sorted((ROOT / package).rglob("*.py")):
        count, wrong = faults(package, path.relative_to(ROOT / package).as_posix(), path.read_text(encoding="utf-8"))
        seen, bad = seen + count, bad + wrong
    assert not bad, "\n".join(bad)
    assert seen >= FEWEST[package]


def test_the_directions_have_no_circle():
    assert set(MAY_IMPORT) == set(PACKAGES)
    for number, package in enumerate(PACKAGES):
        assert MAY_IMPORT[package] <= set(PACKAGES[:number])


@pytest.mark.parametrize(
    ("package", "name", "source", "expected"),
    [
        ("kernels", "cpu/attend.py", "from qsa.model import x\n", "imports qsa.model"),
        ("engine", "slot.py", "def f():\n    import qsa.golden.case\n", "imports qsa.golden"),
        ("golden", "case.py", "from qsa import engine\n", "imports qsa.engine"),
        ("kernels", "cuda/select.py", "from qsa.kernels.ops import x\n", "import it relatively"),
        ("model", "moe.py", "from ..kernels import ops\n", "leaves the package"),
        ("kernels", "cpu/attend.py", "from ..ops import refuse\nfrom qsa.reference import kv\nimport numpy\n", None),
    ],
)
def test_a_wrong_import_is_found(package, name, source, expected):
    count, bad = faults(package, name, source)
    assert count == (2 if expected is None else 1)
    assert bad == [] if expected is None else len(bad) == 1 and expected in bad[0]


def test_the_project_file_names_every_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")}
    # Folders of data are declared too: setuptools would warn of each file in one that is not (known-faults-2 N7).
    data = {
        path.parent for name in ("model", "records", "evidence") for path in (ROOT / "golden" / name).glob("*.json")
    }
    assert len(data) == 3
    assert project["packages"] == sorted(f"qsa.{'.'.join(f.relative_to(ROOT).parts)}" for f in folders | data)
    assert project["package-dir"] == {f"qsa.{name}": name for name in PACKAGES}


def test_every_folder_with_python_files_is_a_package():
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert len(folders) >= 30
    assert [str(f) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_has_types(package):
    assert (ROOT / package / "py.typed").is_file()


EXPORTED = ("reference", "kernels/cpu", "kernels")
"""Packages whose public classes are exported. Of ``kernels`` the files beside its subpackages alone."""

QUALIFIED = {"State"}
"""Names that a class of every kind of layer has: they are used with their module, as in ``qsa.State``."""


def exported(package):
    """Names in ``__all__`` of the package in the folder ``package``."""
    found = set()
    for node in ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            found |= set(ast.literal_eval(node.value))
    return found


@pytest.mark.parametrize("package", EXPORTED)
def test_a_public_class_is_exported_by_a_package_that_holds_it(package):
    paths = (ROOT / package).glob("*.py") if package == "kernels" else (ROOT / package).rglob("*.py")
    seen, bad = 0, []
    for path in sorted(paths):
        folder = path.parent.relative_to(ROOT)
        above = [folder, *folder.parents][: len(folder.parts)]
        names = set.union(*(exported(f) for f in above)) | QUALIFIED
        classes = [n.name for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)]
        classes = [name for name in classes if not name.startswith("_")]
        seen += len(classes)
        bad += [f"{path.relative_to(ROOT)}: {name}" for name in classes if name not in names]
    assert not bad, "\n".join(bad)
    assert seen >= {"reference": 20, "kernels/cpu": 2, "kernels": 6}[package]
