"""How good answers are: routing units, metrics, and the quality of a model on labelled images.

Everything here reads predictions and never changes a model. Scoring a learner after each task of a
stream belongs to `experiments`; tables and plots belong to `report`.
"""
