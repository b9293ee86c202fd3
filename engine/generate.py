"""Generation of one text from start to end."""

from typing import Any

from qsa.model import TextModel

from .draft import Drafter
from .engine import Engine
from .request import Request, check_model, integer
from .runner import Runner
from .slots.memory import MAX_CELLS


def generate(
    model: TextModel,
    ids: Any,
    *,
    capacity: int | None = None,
    page_size: int = 4,
    kv_format: str = "int8",
    chunk: int = 1024,
    drafter: Drafter | None = None,
    runner: Runner | None = None,
    index_format: str = "fp32",
    max_tokens: int = 128,
    **options: Any,
) -> Request:
    """Continue ``ids`` in an engine of one slot, whose capacity is by default that of the text.

    The arguments are those of ``Engine`` and ``Engine.submit``. Returns the finished Request. Raises ValueError as they
    do, and the error of a request that failed.
    """
    if capacity is None:
        length = len(check_model(model).check_ids(ids))
        capacity = max(1, length + integer("max_tokens", max_tokens, 1, MAX_CELLS + 1 - length) - 1)
    engine = Engine(
        model,
        capacity=capacity,
        page_size=page_size,
        kv_format=kv_format,
        chunk=chunk,
        drafter=drafter,
        runner=runner,
        index_format=index_format,
    )
    request = engine.submit(ids, max_tokens, **options)
    engine.run()
    if request.error is not None:
        raise request.error
    return request
