"""Experiments: specifications (TOML files in `specs/`), the experiment loop, and typed results.

`spec` is what an experiment is, `methods` the registry of learners that can take part, `run` the
loop over tasks, `compare` that loop over methods and seeds, `result` the format of its outcome.
How learners are scored belongs to `evaluation`; showing results belongs to `report`.
"""
