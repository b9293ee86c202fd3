"""Two recurrences of the chunked delta rule with kernels of their own: a triangular inverse, and the memory's way from
chunk to chunk. On a CPU they run as plain torch, which is also what the kernels are held to.
"""

from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

if triton:

    @triton.jit
    def _invert_kernel(a, out, D: tl.constexpr):
        base = tl.program_id(0).to(tl.int64) * D * D
        row, column = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
        lower = tl.load(a + base + row * D + column)
        inverse = tl.where(row == column, 1.0, tl.where((row // 2 == column // 2) & (row > column), -lower, 0.0))
        size = 2
        while size < D:
            joins = (row // (2 * size) == column // (2 * size)) & (row // size > column // size)
            step = tl.dot(inverse, tl.where(joins, lower, 0.0), input_precision="ieee")
            inverse -= tl.dot(step, inverse, input_precision="ieee")
            size *= 2
        tl.store(out + base + row * D + column, inverse)

    @triton.jit
    def _carry_kernel(m, n, out, chunks, heads, REVERSE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
        sequence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
        row = tl.arange(0, D)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = row[:, None] * D + column[None, :]
        matrix = row[None, :] * D + row[:, None] if REVERSE else row[:, None] * D + row[None, :]
        state = tl.zeros([D, BLOCK], tl.float32)
        for i in range(chunks):
            chunk = chunks - 1 - i if REVERSE else i
            base = ((sequence * chunks + chunk) * heads + head).to(tl.int64) * D * D
            tl.store(out + base + at, state)
            state = tl.dot(tl.load(m + base + matrix), state, input_precision="ieee") + tl.load(n + base + at)


@torch.library.custom_op("golden::invert", mutates_args=())
def invert(a: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 of strictly lower triangular ``a`` [..., D, D] float32, D a power of two from 16 on.

    The inverse of a block triangular matrix is built from the inverses of its diagonal blocks, doubling their size: no
    power of A is formed, so equal keys (whose powers grow like binomials) do no harm.
    """
    size = a.shape[-1]
    if a.is_cuda:
        a = a.contiguous()
        out = torch.empty_like(a)
        _invert_kernel[(a.numel() // size**2,)](a, out, size, num_warps=4)
        return out
    row = torch.arange(size, device=a.device)[:, None]
    column, block = row.T, 1
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).expand(a.shape).clone()
    while block < size:
        joins = (row // (2 * block) == column // (2 * block)) & (row // block > column // block)
        inverse = inverse - inverse @ (a * joins) @ inverse
        block *= 2
    return inverse


@invert.register_fake
def _(a):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _invert_setup(ctx, inputs, output):
    ctx.save_for_backward(output)


def _invert_backward(ctx, grad):
    (inverse,) = ctx.saved_tensors
    return -(inverse.mT @ grad @ inverse.mT)


invert.register_autograd(_invert_backward, setup_context=_invert_setup)


def _carry(m, n, chunks, reverse):
    """[all chunks, heads, D, D] -> the same: the state before each chunk (after it, when reversed)."""
    count, heads, size = n.shape[:3]
    m, n = m.contiguous(), n.contiguous()
    out = torch.empty_like(n)
    if n.is_cuda:
        _carry_kernel[(count // chunks * heads, size // 16)](m, n, out, chunks, heads, reverse, size, 16, num_warps=4)
        return out
    shape = count // chunks, chunks, heads, size, size
    m, n, view = m.view(shape), n.view(shape), out.view(shape)
    state = torch.zeros_like(n[:, 0])
    for chunk in reversed(range(chunks)) if reverse else range(chunks):
        view[:, chunk] = state
        matrix = m[:, chunk].mT if reverse else m[:, chunk]
        state = matrix @ state + n[:, chunk]
    return out


class Carry(torch.autograd.Function):
    """The states S before each chunk, from S = 0 and S' = M S + N at the end of every chunk.

    ``apply(m, n, chunks)``: m, n [all chunks, heads, D, D] float32, ``chunks`` per sequence. The gradient runs the same
    recurrence backwards with M transposed.
    """

    @staticmethod
    def forward(ctx: Any, m: torch.Tensor, n: torch.Tensor, chunks: int) -> torch.Tensor:
        states = _carry(m, n, chunks, False)
        ctx.save_for_backward(m, states)
        ctx.chunks = chunks
        return states

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        m, states = ctx.saved_tensors
        after = _carry(m, grad, ctx.chunks, True)
        return after @ states.mT, after, None
