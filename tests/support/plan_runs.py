"""Plans (``kernels/cuda/common/plans.py``) that operations run, recorded for tests."""


def recorded_runs(monkeypatch, plans, launched=True):
    """A list that grows by (plan, its arrays) whenever a plan of the module ``plans`` runs; nothing is launched unless
    ``launched``. The plan's own arrays come behind those of the call."""
    runs, run = [], plans.Plan.run

    def recording(plan, arrays, numbers=()):
        runs.append((plan, (*arrays, *plan.own)))
        if launched:
            run(plan, arrays, numbers)

    monkeypatch.setattr(plans.Plan, "run", recording)
    return runs


def clusters_of(runs):
    """Blocks of a cluster of every launch of :func:`recorded_runs`."""
    return [launch.cluster for plan, _ in runs for launch in plan.launches]
