"""A state as a folder: manifest, artifacts, atomic save, verified load, and the model hub.

Folders are not trusted: they are read and written without following links, and everything in them
is checked before it is used. Learning, prediction and the public class belong elsewhere.
"""
