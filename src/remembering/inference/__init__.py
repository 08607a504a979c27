"""Inference: from inputs to a `Prediction`.

Images are decoded and embedded once, routed, sent through the layers of the chosen adapter, and
answered by router and adapter together. Nothing here changes a `ModelState`; whatever trains
belongs to `learning`.
"""
