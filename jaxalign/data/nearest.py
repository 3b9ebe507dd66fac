"""Which text of a list is nearest to another one: cosine of TF-IDF vectors, exact, on sparse matrices."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

_WORD = re.compile(r"\w+")


class Nearest:
    """Prompts to search among.

    Words are lower-cased; a word in n of N texts weighs log((1 + N) / (1 + n)) + 1, a count c enters as 1 + log c.
    """

    def __init__(self, texts: Sequence[str]):
        from scipy import sparse

        vocabulary: dict[str, int] = {}
        columns, rows, values = [], [], []
        for row, text in enumerate(texts):
            words, counts = np.unique(_WORD.findall(text.lower()), return_counts=True)
            columns += [vocabulary.setdefault(str(word), len(vocabulary)) for word in words]
            rows += [row] * len(words)
            values += list(1 + np.log(counts))
        column, row = np.array(columns, np.int64), np.array(rows, np.int64)
        seen = np.bincount(column, minlength=max(len(vocabulary), 1))
        weight = np.array(values, np.float64) * (np.log((1 + len(texts)) / (1 + seen)) + 1)[column]
        norm = np.sqrt(np.bincount(row, weight**2, minlength=len(texts)))
        self._matrix = sparse.csr_array((weight / norm[row], (row, column)), shape=(len(texts), len(seen)))

    def order(self, queries: Sequence[int], block: int = 256) -> Iterator[np.ndarray]:
        """For each query, a place in the list, all places from near to far, itself included; ties by place.

        Similarities of `block` queries at a time are in memory, `[block, texts]`.
        """
        for start in range(0, len(queries), block):
            part = self._matrix[np.asarray(queries[start : start + block])] @ self._matrix.T
            # Rounded: equal texts must tie exactly for the order to be the same on every machine.
            for row in np.round(part.toarray(), 9):
                yield np.argsort(-row, kind="stable")
