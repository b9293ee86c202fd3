"""How the golden model was made: its data, its network in torch, its training, its conversion.

``exercises`` is plain Python and serves the checks too; ``network``, ``scan``, ``optimiser`` and ``train`` need torch
(extra ``train``).
"""
