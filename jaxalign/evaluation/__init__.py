"""From preferences to a table: how reward models rank, how the policies that they guide rank, and what these write.

| file | what it holds |
| --- | --- |
| `experiment` | the config of an experiment and its stages |
| `run_folder` | the results on disk: config, metrics, pairs, generations |
| `sequence` | policy accuracy in the `sequence` form |
"""
