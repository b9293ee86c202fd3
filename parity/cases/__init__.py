"""Cases in files: for engines that no Python reaches, and for other suites. See ``docs/cases.md``.

``export`` writes the calls of the suite's cases (inputs, expected outputs), ``check`` judges what an engine wrote
beside them with the same checks that ``qsa parity`` runs.
"""
