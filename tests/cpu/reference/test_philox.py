"""The generator against its published answers, and its addressing."""

import numpy as np
import pytest

from qsa.reference.philox import blocks, philox4x32, words

# Known answers of the published library (philox4x32, 10 rounds): counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def hexes(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_published_answers(counter, key, expected):
    got = philox4x32(np.array([hexes(counter)], np.uint32), hexes(key))
    assert got.dtype == np.uint32
    assert got.tolist() == [hexes(expected)]


def scalar_philox(counter, key):
    """The definition in Python integers, one block."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_every_block_of_many_chunks_is_the_scalar_definition():
    counters = np.arange(4 * 9001, dtype=np.uint32).reshape(-1, 4) * np.uint32(2654435761)
    got = philox4x32(counters, (7, 0xDEADBEEF))
    for row in (0, 1, 4095, 4096, 8191, 8192, 9000):
        assert got[row].tolist() == scalar_philox(counters[row].tolist(), (7, 0xDEADBEEF))


def test_seed_is_the_key_and_stream_the_upper_counter():
    seed, stream, block = 0x1122334455667788, 0x99AABBCCDDEEFF00, 0x123456789A
    expected = scalar_philox((0x3456789A, 0x12, 0xDDEEFF00, 0x99AABBCC), (0x55667788, 0x11223344))
    assert blocks(seed, stream, [block]).tolist() == [expected]
    assert words(seed, stream, 4 * block, 4).tolist() == expected


@pytest.mark.parametrize("start, count", [(0, 0), (0, 1), (3, 1), (3, 2), (5, 40000), (4 * 2**32 - 6, 12)])
def test_words_are_random_access(start, count):
    base = start - start % 4
    long = words(5, 6, base, count + 8)
    assert words(5, 6, start, count).tolist() == long[start - base : start - base + count].tolist()


def test_carry_into_the_second_counter_word():
    got = blocks(1, 2, [2**32 - 1, 2**32])
    assert got[0].tolist() == scalar_philox((0xFFFFFFFF, 0, 2, 0), (1, 0))
    assert got[1].tolist() == scalar_philox((0, 1, 2, 0), (1, 0))


def test_seeds_and_streams_differ():
    runs = [words(seed, stream, 0, 64) for seed in (0, 1, 2**32) for stream in (0, 1, 2**32)]
    assert len({run.tobytes() for run in runs}) == 9


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: words(-1, 0, 0, 1), "seed"),
        (lambda: words(0, 2**64, 0, 1), "stream"),
        (lambda: words(0.5, 0, 0, 1), "seed"),
        (lambda: words(0, 0, -1, 1), "start"),
        (lambda: words(0, 0, 0, -1), "count"),
        (lambda: blocks(0, 0, [-1]), "index"),
        (lambda: blocks(0, 0, [0.5]), "index"),
        (lambda: blocks(0, 0, np.array([2**63], np.uint64)), "index"),
        (lambda: philox4x32(np.zeros((1, 4), np.int64), (0, 0)), "counters"),
        (lambda: philox4x32(np.zeros((1, 4), np.uint32), (0, 2**32)), "key"),
    ],
)
def test_errors_name_the_argument(call, named):
    with pytest.raises(ValueError, match=named):
        call()
