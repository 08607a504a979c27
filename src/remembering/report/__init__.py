"""Tables, plots, one HTML page and Markdown, made from results.

Everything shown is computed from `experiments.result.RunResult` values that were read from disk.
Nothing here runs a learner. `figure` holds what all figures share, `curves` and `heatmap` draw, and
`looks` gives each method one look; `tables`, `markdown` and `readme` import them only to draw.
"""
