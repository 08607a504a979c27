"""Export: the complete answer path of a model as one ONNX file.

`graph` is `inference` for one batch of prepared images, written without loops over what the images
need, so that it can be exported; `adapters`, `gaussians` and `p_values` are its parts. `onnx_file`
writes the file and verifies it against `inference`. Nothing else in the library uses the graph.
"""
