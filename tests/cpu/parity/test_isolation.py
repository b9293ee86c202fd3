"""A backend in a process of its own: what ends it is one named case, what it changes is seen, what it sends is data.

Row J6 of the known faults, and the cheats of ``qsa prove``.
"""

import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.isolation import RemoteKernel, messages
from qsa.parity.prove import cheats
from qsa.parity.prove.patching import FoundError

ATTEND = "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1"
OTHER = "accuracy:op=attend,format=own,scores=ordinary,context=64,rows=1,tail=0,seed=1"
SELECT = "selection:op=select,rule=blocks,scores=continuous,context=64,rows=2,tail=3,seed=2"

KERNEL = """
import ctypes, os, sys, threading, time
import numpy as np
from support.float_kernel import FloatKernel
right = FloatKernel()
cache, append, read, select = right.cache, right.append, right.read, right.select
"""


@pytest.fixture
def theirs(tmp_path):
    """A function that makes the Backend of a file in a process of its own; its children end with the test."""
    made = []

    def make(attend, seconds=60.0, declaration="{}"):
        path = tmp_path / f"kernel{len(made)}.py"
        path.write_text(f"{KERNEL}\ndeclaration = {declaration}\n{textwrap.dedent(attend)}")
        made.append(RemoteKernel(str(path), seconds))
        return Backend(str(path), None, made[-1])

    yield make
    for kernel in made:
        kernel.close()


def results(backend, *texts):
    return [suite.run_case(suite.parse(text), backend) for text in texts]


def test_a_right_kernel_passes_as_in_the_same_process(theirs):
    backend = theirs("attend = right.attend")
    assert [result.status for result in results(backend, ATTEND, OTHER, SELECT)] == ["passed"] * 3
    assert backend.module is None


DEATHS = {
    "exit status 1": "os._exit(1)",
    "exit status 3": "sys.exit(3)",
    "killed by SIGSEGV": "ctypes.string_at(0)",
    "killed by SIGABRT": "os.abort()",
    "killed by SIGKILL": "os.kill(os.getpid(), 9)",  # as the system does when memory runs out
    "no answer within 2 s": "time.sleep(60)",
    "closed": "os.close(int(sys.argv[1])); time.sleep(30)",
}


@pytest.mark.parametrize("how", DEATHS)
def test_j6_what_ends_the_process_is_one_case_and_the_rest_runs(how, theirs):
    """J6: exit(), a crash or a hang of a backend ended the run with no report, or blamed the next cases."""
    body = f"""
    def attend(q, kv, ids, steps):
        if steps[0, 1] == 63:
            {DEATHS[how]}
        return right.attend(q, kv, ids, steps)
    """
    found = results(theirs(body, seconds=2.0 if "2 s" in how else 60.0), ATTEND, OTHER, SELECT)
    assert [result.status for result in found] == ["failed", "passed", "passed"]
    assert how.split()[0] in found[0].reason and found[0].reason.startswith("BackendDiedError: attend: "), found[0]
    assert how in found[0].reason or how == "closed"


@pytest.mark.parametrize("error", [
    "RuntimeError('CUDA error: an illegal memory access was encountered')",
    "OSError('[700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS')",
    "MemoryError()",
])  # fmt: skip
def test_j6_an_error_of_the_device_that_stays_and_memory_that_ran_out_are_one_case(error, theirs):
    """Every later call of that process would raise it again."""
    body = f"""
    broken = []
    def attend(q, kv, ids, steps):
        if steps[0, 1] == 63:
            broken.append({error})
        for each in broken:
            raise each
        return right.attend(q, kv, ids, steps)
    """
    found = results(theirs(body), ATTEND, OTHER, SELECT)
    assert [result.status for result in found] == ["failed", "passed", "passed"]
    assert error.split("(")[0] in found[0].reason


def test_j6_the_reason_shows_what_the_process_printed_last(theirs):
    body = """
    def attend(q, kv, ids, steps):
        print("about to fall", file=sys.stderr, flush=True)
        os.abort()
    """
    (found,) = results(theirs(body), ATTEND)
    assert "about to fall" in found.reason


def test_an_exception_has_its_type_text_and_place(theirs):
    body = """
    class OddError(Exception): pass
    def attend(q, kv, ids, steps):
        raise OddError("on purpose")
    """
    (found,) = results(theirs(body), ATTEND)
    assert found.status == "failed" and "OddError: on purpose" in found.reason and "kernel0.py, line" in found.reason


def test_a_backend_that_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ValueError, match="nothing_of_this_name"):
        RemoteKernel(str(tmp_path / "broken.py"))
    (tmp_path / "gone.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(Exception, match="loading: the backend's process ended with exit status 7"):
        RemoteKernel(str(tmp_path / "gone.py"))


CHANGES = {
    "q": "q[...] = 0",
    "ids": "ids[0, 0] = 5",
    "steps": "steps[0, 3] -= 1",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_input_is_seen_in_shared_memory(name, theirs):
    body = f"""
    def attend(q, kv, ids, steps):
        answer = right.attend(q, kv, ids, steps)
        {CHANGES[name]}
        return answer
    """
    (found,) = results(theirs(body), ATTEND)
    assert found.status == "failed" and f"changed its input {name}: first at" in found.reason


@pytest.mark.parametrize("cheat", cheats.CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_caught(cheat):
    assert cheat.words in cheats.check(cheat)


def test_the_kernel_that_cheats_are_made_of_passes():
    assert cheats.honest()


def test_a_cheat_that_is_honest_or_fails_too_early_is_no_catch():
    honest = cheats.Cheat("is right", "return right.attend(q, kv, ids, steps)")
    with pytest.raises(FoundError, match="must fail with 'FAILED', is passed"):
        cheats.check(honest)
    early = cheats.Cheat("is wrong at once", "return q * 0", cases=(ATTEND, OTHER))
    with pytest.raises(FoundError, match="must pass before the cheat shows, is failed"):
        cheats.check(early)


def test_a_child_that_hangs_ends_with_its_judge(tmp_path):
    (tmp_path / "slow.py").write_text("import time\n\ndef cache(capacity):\n    time.sleep(600)\n")
    program = """
    from qsa.parity.isolation import RemoteKernel
    kernel = RemoteKernel("slow.py")
    print(kernel._process.pid, flush=True)
    kernel.run("cache", {"capacity": 1}, {}, "own", None)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as judge:
        child = int(judge.stdout.readline())
        judge.kill()
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child is still there")


def test_seeds_and_cases_do_not_reach_the_child():
    sent = []

    class Kept(RemoteKernel):
        def run(self, name, arguments, keywords, gives, guarded):
            sent.append(messages.place([name, arguments, keywords, gives, guarded])[0])
            return super().run(name, arguments, keywords, gives, guarded)

    kernel = Kept("cpu")
    text = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=12345678901"
    assert results(Backend("cpu", None, kernel), text)[0].status == "passed"
    kernel.close()
    assert sent and not any(b"seed" in head or b"accuracy" in head or b"12345678901" in head for head in sent)


def test_an_index_that_comes_back_with_its_attributes_in_another_order(theirs):
    body = """
    declaration = {"arithmetic": "float"}
    import copy
    def to_device(x):
        return x.copy() if isinstance(x, np.ndarray) else copy.deepcopy(x)
    def to_host(x):
        if isinstance(x, np.ndarray):
            return x
        other = copy.copy(x)
        other.__dict__ = dict(reversed(vars(x).items()))
        return other
    def append_index(raw, steps, index):
        own = {"keys": np.zeros_like(index.pooled), "weight": index.weight, "rope": index.rope}
        right.index_append(own, raw, steps[:, 0])
        index.pooled[:], index.dead[:] = own["keys"], own["keys"][0]
        first = {"keys": own["keys"][:1].copy(), "weight": index.weight, "rope": index.rope0[None]}
        right.index_append(first, np.repeat(raw[:1], 4, 0), steps[:4, 0])
        index.dead[:] = first["keys"][0]
        return True
    """
    (found,) = results(theirs(body), "accuracy:op=append_index,context=64,seed=5")
    assert found.status == "passed", found


# Messages


def roundtrip(value):
    head, memory = messages.place([value])
    found = messages.take(head, memory, lambda handle: handle)[0]
    memory.close()
    return found


def test_arrays_of_every_kind_go_through_shared_memory():
    for array in (
        np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
        np.zeros((0, 5), np.float32),
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.float32(3) * np.ones((2, 2), np.float32),
    ):
        got = roundtrip({"x": [array]})["x"][0]
        assert got.dtype == array.dtype and got.shape == array.shape and (got == array).all() and got.flags.writeable
    assert roundtrip({"rule": "blocks", "n": 3, "none": None}) == {"rule": "blocks", "n": 3, "none": None}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"\xff\xff", [], "cannot be read"),
        (msgspec.msgpack.encode({"kind": "result", "arrays": [["O", [1]]]}), [bytes(8)], "not known"),
        (msgspec.msgpack.encode({"kind": "result", "arrays": [["nonsense", [1]]]}), [bytes(8)], "not known"),
        (msgspec.msgpack.encode({"kind": "result", "arrays": [["<f4", [3]]]}), [bytes(8)], "must have 12"),
        (msgspec.msgpack.encode({"kind": "result", "arrays": [["<f4", [-1]]]}), [bytes(8)], "cannot be read"),
        (msgspec.msgpack.encode({"kind": "result", "arrays": [["<f4", [1 << 30, 1 << 30]]]}), [b""], "must have"),
        (msgspec.msgpack.encode({"kind": "result", "more": 1}), [], "cannot be read"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error(header, data, words):
    ours, theirs = socket.socketpair()
    messages.send(theirs, header, *data)
    with pytest.raises(ValueError, match=words):
        messages.read_answer(ours)


def test_a_child_that_is_gone_is_an_end_of_file():
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(EOFError):
        messages.read_answer(ours)


def test_a_length_beyond_the_limit_allocates_nothing():
    ours, theirs = socket.socketpair()
    theirs.sendall((1 << 62).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="are allowed"):
        messages.receive(ours)
