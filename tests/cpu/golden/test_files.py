"""What reports, records and goldens are written to: files are replaced, links, devices and FIFOs are not."""

import json
import os
import socket
import stat
import threading

import pytest

from qsa.golden import files, store
from qsa.parity import cli, gate, report

FAST = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"

WRITERS = {"report": report.write_json, "store": store.write_json}


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


def test_a_regular_file_is_replaced(tmp_path, write):
    path, before = tmp_path / "new" / "report.json", tmp_path / "before"
    write(path, {"a": 1})
    before.hardlink_to(path)
    write(path, {"a": 2})
    assert [json.loads(one.read_text()) for one in (path, before)] == [{"a": 2}, {"a": 1}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert sorted(one.name for one in path.parent.iterdir()) == ["report.json"]


def test_a_link_is_written_through(tmp_path, write):
    path, link = tmp_path / "report.json", tmp_path / "link.json"
    path.write_text("a longer text than the report\n" * 9)
    link.symlink_to(path)
    files.probe(link)
    assert path.read_text().startswith("a longer text")
    write(link, {"a": 1})
    assert link.is_symlink() and json.loads(path.read_text()) == {"a": 1}


def test_a_fifo_is_written_through(tmp_path, write):
    path, read = tmp_path / "fifo", []
    os.mkfifo(path)
    files.probe(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    writer = threading.Thread(target=write, args=(path, {"a": 1}), daemon=True)
    writer.start()
    reader.join(20)
    assert [json.loads(text) for text in read] == [{"a": 1}]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_is_written_through(tmp_path, write):
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_text("")
    except PermissionError as error:
        pytest.skip(f"a device node cannot be made here: {error}")
    files.probe(path)
    write(path, {"a": 1})
    assert stat.S_ISCHR(path.lstat().st_mode)


def _folder(path):
    path.mkdir()


def _linked_folder(path):
    path.symlink_to(path.parent)


def _dangling(path):
    path.symlink_to("missing.json")


def _missing_folder(path):
    path.symlink_to("missing/report.json")


def _loop(path):
    path.symlink_to(path.name)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


TARGETS = {
    _folder: "it is a folder",
    _linked_folder: "it is a folder",
    _dangling: "it is a link that leads to no file: No such file or directory",
    _missing_folder: "it is a link that leads to no file: No such file or directory",
    _loop: "it is a link that leads to no file: Too many levels of symbolic links",
    _socket: "it is a socket",
}


@pytest.mark.parametrize("make", TARGETS)
@pytest.mark.parametrize("command", [("parity", "--case", FAST), ("gate", "--only", "evidence")])
def test_what_cannot_be_written_is_said_before_the_run(tmp_path, monkeypatch, capsys, make, command):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "to")
    kind = os.lstat("to")
    for option in ("--json", "--junit"):
        assert cli.main([*command, option, "to"]) == 2
        said = capsys.readouterr()
        text = f"qsa {command[0]}: error: {option} = 'to': must be a file that can be written: {TARGETS[make]}\n"
        assert (said.out, said.err) == ("", text)
    assert os.lstat("to").st_ino == kind.st_ino and [one.name for one in tmp_path.iterdir()] == ["to"]
    with pytest.raises(OSError, match=TARGETS[make]):
        files.write("to", "text")


def test_a_folder_that_may_not_be_written_is_said_before_the_run(tmp_path, monkeypatch, capsys):
    """As by a user for whom it is read-only; root may write everywhere."""

    def refused(**options):
        raise PermissionError(13, "Permission denied", "x.tmp")

    monkeypatch.setattr(files.tempfile, "mkstemp", refused)
    assert cli.main(["gate", "--only", "evidence", "--json", str(tmp_path / "r.json")]) == 2
    said = capsys.readouterr()
    reason = f"must be a file that can be written: folder {str(tmp_path)!r}: Permission denied\n"
    assert said.out == "" and said.err.endswith(reason)


@pytest.mark.parametrize(("option", "begin"), [("--json", "{"), ("--junit", "<?xml")])
@pytest.mark.parametrize("verb", ["parity", "gate"])
def test_a_report_on_standard_output_stands_alone(tmp_path, monkeypatch, capsys, verb, option, begin):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate, "CHECKS", {"good": lambda run: [gate.verdict("good", "a", "passed")]})
    command = ["parity", "--backend", "cpu", "--case", FAST] if verb == "parity" else ["gate"]
    assert cli.main([*command, option, "-"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(begin) and said.out.endswith("}\n" if begin == "{" else ">\n")
    assert begin == "<?xml" or json.loads(said.out)["passed"] == 1
    assert "passed" in said.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("parity", "--case", FAST), ("gate",)])
def test_two_reports_on_standard_output_are_refused(capsys, command):
    assert cli.main([*command, "--json", "-", "--junit", "-"]) == 2
    assert "only one of them can be standard output" in capsys.readouterr().err


def test_evidence_on_standard_output(tmp_path, monkeypatch, capsys):
    from qsa.golden import device_records as evidence
    from support.evidence_records import record

    monkeypatch.chdir(tmp_path)
    one = record()
    path = tmp_path / f"{one.name}.json"
    evidence.write(path, one)
    assert cli.main(["evidence", "merge", str(path), "--out", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    assert cli.main(["evidence", "run", "--out", "-"]) == 2
    assert "--out = '-': a record is written after every step" in capsys.readouterr().err
