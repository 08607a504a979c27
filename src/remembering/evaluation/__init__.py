"""How a learner is scored: routing units, metrics, and the evaluator of a stream of tasks.

Everything here reads learners and never changes them. Running whole experiments and writing
results belongs to `experiments`; tables and plots belong to `report`.
"""
