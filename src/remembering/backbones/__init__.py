"""Backbones: load a frozen pretrained Vision Transformer, preprocess images, run its layers.

Everything that depends on the architecture or the files of a checkpoint belongs here. Adapters do
not: layers call whatever implements `ActiveAdapters`.
"""
