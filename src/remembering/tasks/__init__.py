"""Streams of tasks, and where their data comes from."""

from remembering.tasks.task import Label, Task

__all__ = ["Label", "Task"]
