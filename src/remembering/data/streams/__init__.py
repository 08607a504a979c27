"""Task streams: how the images of one or more sources are divided into a sequence of tasks.

One module per kind of stream (`split`, `permute`, `sequence`), all returning a `Stream`. Reading
data belongs to `remembering.data.sources`.
"""
