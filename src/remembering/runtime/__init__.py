"""Services that know nothing about models: processes, seeds, progress, files, locks and buffers.

Whatever touches the operating system or other processes and is needed by several packages belongs
here; anything that knows tasks, adapters or routers does not.
"""
