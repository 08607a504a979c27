"""Tables, plots, one HTML page and Markdown, made from results.

Everything shown is computed from `experiments.result.RunResult` values that were read from disk.
Nothing here runs a learner, and nothing but `plots` and `page` needs matplotlib.
"""
