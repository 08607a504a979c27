"""Streams of tasks, and where their data comes from."""

from remembering.data.task import Label, Task

__all__ = ["Label", "Task"]
