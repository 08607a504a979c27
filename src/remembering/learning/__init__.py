"""Learning: functions from a `ModelState` and data to a new `ModelState`.

Algorithm 1 of the paper is in `algorithm`, its training loop, replay memory and adapter fusion in
files of their own. `observe` learns from streams without task boundaries, `forget` removes a task.
Nothing here reads or writes model folders; checkpoints of a task in training are in `checkpoint`.
"""
