"""The field's data sets in the layouts that their authors publish: one file each, from a folder to rows.

Each module has `SOURCE` (licence, citation, where to get it, which files) and a generator of rows. None needs
TensorFlow Datasets; `jaxalign.data.builders` wraps them as TFDS builders.
"""
