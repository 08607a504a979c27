"""HTTP service and browser UI: predict while learning, with background jobs.

`app` maps requests to the `Service`. A `Batcher` combines concurrent predictions, and a `Learner`
thread makes every change to the model: jobs, edits, and states that other processes saved. Models,
learning and storage belong elsewhere; nothing here computes results.
"""
