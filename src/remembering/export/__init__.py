"""Export: the complete answer path of a model as one ONNX file.

`graph` is `inference` for one batch of prepared images, written without loops over what the images
need, so that it can be exported; `embedding`, `routers`, `adapters`, `gaussians` and `p_values` are
its parts. `onnx_file` converts it, and `verify` compares the result with `inference` before it is
written. Nothing else in the library uses the graph.
"""
