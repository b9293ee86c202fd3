"""One text, start to end."""

from .engine import Engine
from .memory import MAX_CELLS
from .request import integer


def generate(
    model,
    ids,
    *,
    capacity=None,
    page_size=4,
    kv_format="int8",
    chunk=1024,
    drafter=None,
    runner=None,
    max_tokens=128,
    **options,
):
    """Continue ``ids`` in an engine of one slot, which has room for the text unless ``capacity`` says otherwise.

    Arguments as ``Engine`` and ``Engine.submit``. Returns the finished Request. Raises ValueError as they do, and the
    error of a request that failed.
    """
    if capacity is None:
        length = len(model.check_ids(ids))
        capacity = max(1, length + integer("max_tokens", max_tokens, 1, MAX_CELLS + 1 - length) - 1)
    engine = Engine(
        model,
        capacity=capacity,
        page_size=page_size,
        kv_format=kv_format,
        chunk=chunk,
        drafter=drafter,
        runner=runner,
    )
    request = engine.submit(ids, max_tokens, **options)
    engine.run()
    if request.error is not None:
        raise request.error
    return request
