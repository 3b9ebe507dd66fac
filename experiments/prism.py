"""RM accuracy against policy accuracy on conversations that people rated (PRISM).

Claim:    of arXiv 2512.23067: ranking accuracy says little about the guided policy. Reported as met or not met on this
          data, never forced.
Command:  jaxalign run experiments/prism.py --data FOLDER
          FOLDER holds conversations.jsonl of PRISM.
Hardware: one TPU v5e-8 or one GPU of 40 GB.
Mesh:     --mesh users=N on N chips (the model fits one chip); `jaxalign plan --model qwen2.5-1.5b --top-k 10` says
          what a slice holds and about how fast it is.
Time:     not measured: neither the data nor such a machine was at hand. `--dry-run` estimates it.
Expected: not known. Checked on small files in the official layout only.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="prism",
    title="PRISM: conversations rated by people of 75 countries",
    source="prism",
    model="Qwen/Qwen2.5-1.5B-Instruct",
    min_pairs=10,
    shots=(1, 2, 5, 10),
    response_tokens=128,
    batch_size=64,
)
