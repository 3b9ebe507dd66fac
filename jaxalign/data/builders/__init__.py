"""The sources as builders of TensorFlow Datasets, stored as ArrayRecord: no TensorFlow is needed to make or read them.

    builder = prepare("ukp", data="folder/with/ukp")
    rows = read(builder)                       # list of Preference
    source = builder.as_data_source("train")   # random access to dictionaries, as any TFDS data set

`tfds.builder("ukp", ...)` finds them too, once `jaxalign.data.builders.<module>` is imported.
"""

from jaxalign.data.builders.prepare import NAMES, prepare, read

__all__ = ["NAMES", "prepare", "read"]
