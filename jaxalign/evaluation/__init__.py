"""From preferences to a report: how reward models rank, how the policies that they guide rank, what these write.

| file | what it holds |
| --- | --- |
| `experiment` | the config |
| `pipeline` | the stages, each on the results of those before; start reading here |
| `plan` | what a run would do, and about how long |
| `sources`, `task` | from data to parts that share no group and no unseen user, history, and targets |
| `models` | reward models fitted on seen users and adapted to the others |
| `judging`, `forms` | the one teacher-forced pass over the texts, and the scores that policy accuracy compares |
| `in_context`, `graded`, `likelihood` | baselines without a reward model |
| `roster`, `writing`, `quality` | texts by all methods in one batch, and how good they are |
| `table`, `accuracies`, `selecting` | numbers with their intervals, and the choice |
| `run_folder`, `shards`, `folder_lock`, `preemption` | results on disk: whole, checked, continued |
| `sharding`, `distributed`, `launch` | users over devices, processes and hosts |
"""
