"""The same work by torch libraries, straightforward and fair: same weights, prompts, dtype and threads as ours.

Nothing here is imported unless a benchmark is asked for peers (extra `peers`).
"""
