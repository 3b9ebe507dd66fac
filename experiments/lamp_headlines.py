"""Headlines that journalists wrote for their own articles (LaMP-4), Pref-LaMP style.

Claim:    of arXiv 2512.23067: methods that rank far better need not write more like the user, and in-context learning
          is hard to beat. Reported as met or not met on this data, never forced.
Command:  jaxalign run experiments/lamp_headlines.py --data FOLDER
          FOLDER holds train_questions.json and train_outputs.json, or the dev files, of LaMP-4.
Hardware: one TPU v5e-8 or one GPU of 40 GB.
Mesh:     --mesh users=N on N chips (the model fits one chip); `jaxalign plan --model qwen2.5-3b --top-k 10` says
          what a slice holds and about how fast it is.
Time:     not measured: neither the data nor such a machine was at hand. `--dry-run` estimates it.
Expected: not known. Checked on small files in the official layout only.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="lamp_headlines",
    title="LaMP-4: headlines",
    source="lamp4",
    model="Qwen/Qwen2.5-3B-Instruct",
    min_pairs=10,
    users=500,
    response_tokens=32,
    batch_size=64,
    writing_users=200,
    prompts_per_user=1,
)
