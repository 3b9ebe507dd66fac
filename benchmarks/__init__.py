"""Benchmarks: each prints a table and writes JSON lines that say where and how every number came about.

| file | what it holds |
| --- | --- |
| `decode`, `score`, `fit`, `fit_growth`, `plan`, `data_check` | the benchmarks; `python -m benchmarks.NAME --help` |
| `harness` | warm-up, repeats, interleaving, medians with spread, ratios, fitted exponents |
| `ceilings`, `cost` | what the machine can do at most; the bytes and operations that a decode step needs |
| `kinds`, `cases` | the guidances that are compared; one combination of settings, compiled and run |
| `flags`, `machine` | shared flags; machine, versions, commit and command of a run |
| `table`, `plots`, `markdown` | how results are shown |
| `compare` | a run against the stored ratios of `baseline.json` |
| `profile` | where the time of a decode step goes |
| `peers/` | the same work by torch libraries (extra `peers`), imported only on request |

Only jax, flax, transformers, safetensors, numpy and scipy are needed; matplotlib draws the plots where it is installed.
"""
