"""Plans for accelerators that are not here: the real programs compiled ahead of time, and what they will need.

| file | what it holds |
| --- | --- |
| `plan` | a plan for one mesh, and the choice between several |
| `chips` | TPU chips and topologies |
| `programs` | prefill, guided decode and scoring with abstract arguments |
| `hlo` | collectives in a compiled program: where, and over which mesh axis |
| `flops` | matrix products of a traced program, loops multiplied |
| `roofline` | tokens per second that the chips' limits allow |
"""
