"""Experiments: specifications (TOML files in `specs/`), the experiment loop, and typed results.

`spec` is what an experiment is, `methods` the registry of learners that can take part, `run` the
loop over tasks, `evaluator` scores a learner after each of them, `compare` is that loop over
methods and seeds, `result` the format of its outcome. Metrics belong to `evaluation`; showing
results belongs to `report`.
"""
