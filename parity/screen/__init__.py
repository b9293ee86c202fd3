"""``qsa bench``: cases, inputs, timers, limits of the machine and the report, for any backend of the contract.

From a case to a number: ``cases`` says what is timed, ``problems`` makes its inputs and judges results, ``calls`` holds
a call's own copy of them, ``samplers`` times it, ``measure`` lets the contestants take turns, ``limits`` says what the
machine cannot do. Everything that is written is a :class:`~.results.Bench`.
"""
