"""RM accuracy against policy accuracy on summaries judged by workers (OpenAI TL;DR comparisons).

Claim:    of arXiv 2512.23067: ranking accuracy says little about the guided policy. Reported as met or not met on this
          data, never forced.
Command:  jaxalign run experiments/tldr.py --data FOLDER
          FOLDER holds the official comparisons, batch*.json under comparisons/.
Hardware: one TPU v5e-8 or one GPU of 40 GB.
Mesh:     --mesh users=N on N chips (the model fits one chip); `jaxalign plan --model qwen2.5-1.5b --top-k 10` says
          what a slice holds and about how fast it is.
Time:     not measured: neither the data nor such a machine was at hand. `--dry-run` estimates it.
Expected: not known. Checked on small files in the official layout only.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="tldr",
    title="TL;DR comparisons: workers as users",
    source="tldr",
    model="Qwen/Qwen2.5-1.5B-Instruct",
    min_pairs=20,
    shots=(1, 2, 5, 10, 20, 50),
    response_tokens=64,
    batch_size=64,
)
