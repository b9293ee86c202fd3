"""The parity modules that run the golden model: whole texts, windows, scores and needles, and what they catch."""

import numpy as np
import pytest
from msgspec import structs

from qsa.golden.families import score, text
from qsa.golden.record import GoldenError
from qsa.kernels import cpu
from qsa.kernels.switches import override, switches
from qsa.model.generate import generate
from qsa.parity import suite
from qsa.parity.backend import Backend, UnsupportedError
from qsa.parity.checks import golden_model, needle, nll, seven, spec
from qsa.reference.sampler import GREEDY
from support.mutants import attend, backend

__all__ = ["backend"]  # a fixture is used by its name

SHORT = "seven:op=text,computation={},spec={},switch={},tokens=24"


@pytest.fixture(autouse=True)
def forget():
    """A mutant has the name of the one before it."""
    yield
    for cached in (golden_model._model, golden_model._engine, nll._logits, needle._haystack):
        cached.cache_clear()


def run(case, backend=None):
    return suite.run_case(suite.parse(case), Backend("cpu") if backend is None else backend)


def said(result):
    return "\n".join(result.lines(Backend("cpu"), verbose=True))


@pytest.mark.parametrize(
    "case",
    [
        SHORT.format("math-greedy", 1, "none"),
        SHORT.format("math-sampled", 8, "none"),
        SHORT.format("code-greedy", 3, "batch_qsa_attn"),
        SHORT.format("code-sampled", 4, "split_attn"),
        "spec:op=windows,computation=code-greedy,floor=0,tokens=64",
        "spec:op=windows,computation=math-sampled,floor=50,tokens=64",
        *(f"spec:op=drafter,computation=code-greedy,drafter={drafter},tokens=24" for drafter in spec.DRAFTERS),
        "nll:op=score,set=math,against=split,positions=64",
        "nll:op=score,set=text,against=float,positions=256",
    ],
)
def test_the_cpu_passes(case):
    result = run(case)
    assert result.status == "passed", said(result)


def test_cases_are_parsed_back():
    for arithmetic in ("exact", "float"):
        cases = suite.collect(["seven", "spec", "nll", "needle"], arithmetic, full=True)
        assert len({one.text for one in cases}) == len(cases)
        assert [suite.parse(one.text) for one in cases] == cases
    names = {one.recipe["computation"] for one in suite.collect(["seven"], "exact")}
    assert names == {*text.COMPUTATIONS, *seven.GROUPS}
    asked = {(one.recipe["spec"], one.recipe["switch"]) for one in suite.collect(["seven"], "exact")}
    assert asked >= {(rows, "none") for rows in range(1, 9)} | {(4, switch) for switch in seven.KERNELS}


def test_somebodys_own_attention_carries_the_text(backend):
    """A module with one operation: the rest of the model is the CPU's, and the text is the golden one."""
    mine = backend(append_kv=None, append_index=None, block_scores=None, select=None)
    result = run(SHORT.format("math-greedy", 1, "none"), mine)
    assert result.status == "passed", said(result)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("operation", ["block_scores", "select", "attend"])
def test_every_operation_that_somebody_has_carries_a_batch(backend, operation, batch):
    """Beyond the budget, where scores matter, and two texts at a time, whose results have their places."""
    wanted = [
        {"ids": text.prompts()["2k"][:size], "count": 2, "options": text.SAMPLED, "seed": 3} for size in (262, 271)
    ]
    others = dict.fromkeys({"append_kv", "append_index", "block_scores", "select", "attend"} - {operation})
    with override(batch_qsa_attn=batch):
        expected, _ = golden_model.texts(Backend("cpu"), wanted, 2)
        found, _ = golden_model.texts(backend(**others), wanted, 2)
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.logits, other.logits)


def caught(backend, *words):
    """The failure of a text as far as its logits are stored."""
    result = run(f"seven:op=text,computation=math-greedy,spec=1,switch=none,tokens={text.PART}", backend)
    assert result.status == "failed"
    for word in words:
        assert word in said(result)


def test_an_attention_that_loses_its_newest_cell_changes_the_logits(backend):
    def lossy(q, kv, ids, steps, slots=None, out=None, **keywords):
        fewer = steps.copy()
        fewer[:, 3] -= 1
        return attend(q, kv, ids, fewer, slots, out)

    caught(backend(attend=lossy), "logits behind the text: hash")


def test_a_last_bit_of_one_head_changes_the_logits(backend):
    """The text stands: a dim of a head of every row is one unit in the last place off."""

    def near(q, kv, ids, steps, slots=None, out=None, **keywords):
        result = attend(q, kv, ids, steps, slots, out)
        result[:, 0, 0] = np.nextafter(result[:, 0, 0], np.float32(np.inf))
        return result

    mine = backend(attend=near)
    caught(mine, "logits behind the text: hash")
    # known-faults N2: a kernel that keeps bounds is told in which arithmetic it is judged by them.
    result = run(f"seven:op=text,computation=math-greedy,spec=1,switch=none,tokens={text.PART}", mine)
    (hint,) = [line for line in result.lines(mine) if line.startswith("  hint: ")]
    assert "held to bytes" in hint and '{"arithmetic": "float"}' in hint
    # Of our own backends the arithmetic is no question.
    assert not any("hint: " in line for line in result.lines(Backend("cpu")))


def test_attention_of_zeros_changes_the_text(backend):
    def nothing(q, kv, ids, steps, slots=None, out=None, **keywords):
        return np.zeros(q.shape, np.float32)

    caught(backend(attend=nothing), "first wrong token", "logits behind the text: hash")


def test_a_module_without_any_of_a_models_operations_is_unsupported(backend):
    with pytest.raises(UnsupportedError, match="none of block_scores, select, attend"):
        golden_model.model(backend(attend=None, block_scores=None, select=None))


def test_the_engines_text_is_the_loops():
    """Token by token in the reference's own loop, and the same with drafts, alone and in a batch."""
    model = golden_model.model(Backend("cpu"))
    given = [
        {"ids": text.prompts()[name][:90], "count": 20, "options": options, "seed": 3}
        for name, options in (("math", GREEDY), ("code", text.SAMPLED))
    ]
    plain = [generate(model, one["ids"], one["count"], one["options"], one["seed"]) for one in given]
    for rows in (1, 4):
        batch, _ = golden_model.texts(Backend("cpu"), given, rows)
        for one, found in zip(plain, batch, strict=True):
            assert np.array_equal(one.tokens, found.tokens) and np.array_equal(one.logits, found.logits)


@pytest.mark.parametrize("error, status", [(ValueError, "failed"), (UnsupportedError, "unsupported")])
@pytest.mark.parametrize(
    "case, words",
    [
        (SHORT.format("math-greedy", 4, "none"), "no windows"),
        (SHORT.format("math-greedy", 1, "none"), None),
        ("spec:op=drafter,computation=math-greedy,drafter=right,tokens=16", "no windows"),
        ("nll:op=score,set=math,against=split,positions=64", "no windows"),
    ],
)
def test_a_backend_without_windows_does_not_pass_row_by_row(backend, case, words, error, status):
    """The engine goes on without the drafts when a window fails, and the text is right."""

    def attend(q, kv, ids, steps, slots=None, out=None):
        if 1 < len(q) <= 8:
            raise error("no windows")
        return cpu.attend(q, kv, ids, steps, slots, out)

    result = run(case, backend(attend=attend, append_kv=None, append_index=None, block_scores=None, select=None))
    if words is None:
        assert result.status == "passed", said(result)
    else:
        assert result.status == status and words in said(result), said(result)


def test_a_text_that_ends_early_is_no_beginning_of_the_right_one():
    given = text.make_inputs({"computation": "math-greedy"})
    (found,), _ = golden_model.texts(Backend("cpu"), [given], tokens=8)
    assert seven.held_to_golden("math-greedy", found, 8).passed
    short = seven.held_to_golden("math-greedy", found, 24)
    assert not short.passed and short.bad == 16 and short.notes == ("first wrong token: 8",)


def test_every_window_must_have_drafts_of_its_own(monkeypatch):
    """Windows of two rows that in truth have one give the right text, and are no windows of two rows."""
    texts = golden_model.texts
    monkeypatch.setattr(
        golden_model,
        "texts",
        lambda backend, wanted, spec=1, *rest, **options: texts(backend, wanted, 1 if spec == 2 else spec, *rest),
    )
    result = run("spec:op=windows,computation=code-greedy,floor=0,tokens=16")
    assert [one.name for one in result.comparisons if not one.passed] == ["windows of 2 rows: drafts really happened"]


def test_in_the_float_arithmetic_it_is_said_how_many_texts_the_split_switch_leaves_equal(monkeypatch):
    """Two short computations in the place of the seven; then one whose text parts, and one whose first token does."""
    floats, texts = Backend("cpu", "float"), golden_model.texts
    answers = {name: text.COMPUTATIONS[name] for name in ("math-greedy", "code-greedy")}
    monkeypatch.setitem(seven.GROUPS, "all", tuple(answers))

    def said_of(place):
        def parting(backend, wanted, spec=1, tokens=None):
            found, requests = texts(backend, wanted, spec, tokens)
            if place is not None and switches().split_attn and np.array_equal(wanted[0]["ids"], text.prompts()["code"]):
                found[0].tokens[place] += 1
            return found, requests

        monkeypatch.setattr(golden_model, "texts", parting)
        result = run("seven:op=split,computation=all,tokens=12", floats)
        return result.status, result.comparisons[-1].notes[0], result.comparisons[1].notes[0]

    assert said_of(None) == ("passed", "2 of 2 texts stay equal with the switch on", "equal: all 12 tokens")
    assert said_of(7) == ("passed", "1 of 2 texts stay equal with the switch on", "texts part at token 7 of 12")
    assert said_of(0)[0] == "failed"


def test_the_float_arithmetic_is_not_held_against_itself():
    result = run("nll:op=score,set=math,against=float,positions=64", Backend("cpu", "float"))
    assert result.status == "unsupported", said(result)


def test_a_run_in_which_nothing_was_drafted_proves_nothing():
    assert not spec._happened(0, 0, 0).passed
    assert not spec._happened(5, 5, 0).passed
    assert not spec._happened(5, 0, 3).passed
    assert spec._happened(5, 2, 3).passed
    assert spec._happened(5, 0, 3, need_accepted=False).passed


def test_differences_of_scores_are_counted():
    rng = np.random.default_rng(0)
    standing = rng.normal(size=(500, 16)).astype(np.float32)
    next_ids = rng.integers(0, 16, 500)
    same = nll.difference("x", standing, standing, next_ids)
    assert same.measure == 0 and same.figures["top-1 agreement"] == 1 and same.figures["kl max"] == 0
    changed = standing.copy()
    changed[7, standing[7].argmin()] += 9
    one = nll.difference("x", standing, changed, next_ids)
    assert one.figures["top-1 agreement"] == 499 / 500 and "position 7" in one.notes[0]
    # A drop of one logit by 1 at each target: the mean NLL grows by nearly that, far beyond the bound.
    worse = standing.copy()
    worse[np.arange(500), next_ids] -= 1
    bad = nll.difference("x", standing, worse, next_ids)
    assert not bad.passed and 0.5 < bad.measure < 1 and bad.figures["mean"] > 0


WRONG = {"zeros": np.zeros_like, "permuted heads": lambda right: np.roll(right, 1, axis=1)}
"""Outputs of attention that are wrong in every window, schedule and arithmetic alike."""


@pytest.mark.parametrize(
    "case, arithmetic, golden",
    [
        ("spec:op=windows,computation=code-greedy,floor=0,tokens=64", "exact", "golden text-code-greedy"),
        ("spec:op=drafter,computation=code-greedy,drafter=wrong,tokens=24", "exact", "golden text-code-greedy"),
        ("nll:op=score,set=math,against=split,positions=64", "exact", "golden score-math-1024: mean"),
        ("nll:op=score,set=math,against=split,positions=64", "exact", "golden score-math-1024: logits"),
        ("nll:op=score,set=text,against=split,positions=64", "float", "golden score-text-1024: mean"),
        ("needle:op=find,context=4096,depth=50", "exact", "golden needle-4k, 50 %"),
        ("needle:op=find,context=4096,depth=50", "float", "needle at 50 % of 4096"),
    ],
)
def test_zeros_and_permuted_heads_fail_every_module_on_texts(backend, case, arithmetic, golden):
    """They change every window alike, so only a golden tells."""
    right = run(case, Backend("cpu", arithmetic))
    assert right.status == "passed" and golden in {one.name for one in right.comparisons}, said(right)
    for wrong in WRONG.values():
        golden_model._model.cache_clear()

        def changed(q, kv, ids, steps, slots=None, wrong=wrong):
            return wrong(cpu.attend(q, kv, ids, steps, slots, arithmetic=arithmetic))

        declaration = {"arithmetic": arithmetic, "shapes": {"heads": [(4, 2)]}}
        other = backend(attend=changed, declaration=declaration, append_kv=None, append_index=None,
                        block_scores=None, select=None)  # fmt: skip
        found = run(case, other)
        assert golden in {one.name for one in found.comparisons if not one.passed}, said(found)


def test_stored_means_have_the_hash_of_the_record():
    output = golden_model.record("score", {"set": "math", "positions": 1024}, score.make_inputs(
        {"set": "math", "positions": 1024})).outputs["mean"]  # fmt: skip
    means = score.stored_means(output)
    assert list(means) == [64, 256, 1024] and all(0.01 < mean < 5 for mean in means.values())
    moved = structs.replace(output.statistics, first=[mean + 1e-5 for mean in output.statistics.first])
    with pytest.raises(GoldenError, match="another hash"):
        score.stored_means(structs.replace(output, statistics=moved))


def test_a_golden_of_scores_or_needles_runs_by_its_own_case_string():
    result = run("score:set=math,positions=1024")
    assert result.status == "passed", said(result)


def test_a_lost_needle_is_a_failure(backend):
    """Attention to the newest cells alone answers, but does not find."""
    found = run("needle:op=find,context=4096,depth=10")
    assert found.status == "passed", said(found)

    def near(scores, steps, ids=None, *, rule="blocks", geometry):
        late = np.broadcast_to(np.arange(scores.shape[1], dtype=np.float32), scores.shape).copy()
        return cpu.select(late, steps, ids, rule=rule, geometry=geometry)

    blind = run("needle:op=find,context=4096,depth=10", backend(select=near, attend=None, block_scores=None))
    assert blind.status == "failed", said(blind)
    assert "hidden: " in said(blind)


def test_prompts_with_the_same_beginning_are_read_once(monkeypatch):
    """Each reads only what comes behind the longest one before it; short prompts and drafted texts are the engine's."""
    ids = np.resize(np.arange(7, 98), 9000)
    reader = golden_model.PromptReader(golden_model.model(Backend("cpu")))
    rows, run = [], reader._runner.run

    def counted(given, slots):
        rows.append(len(given[0]))
        return run(given, slots)

    monkeypatch.setattr(reader._runner, "run", counted)
    assert reader.prefix(ids[:4095]) is None and not rows
    first = reader.prefix(ids[:4097])
    assert first.n == sum(rows) == 4096
    digest = first.digest()
    second = reader.prefix(ids[:6144])
    assert second.n == sum(rows) == 5120
    assert reader.prefix(ids[:4097]) is first and reader.prefix(ids[:5122]) is second and sum(rows) == 5120
    assert first.digest() == digest
    other = ids[:4097].copy()
    other[0] += 1
    assert reader.prefix(other).digest() != digest and sum(rows) == 9216
