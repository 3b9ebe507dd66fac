"""Where in-context learning overtakes guidance: Qwen2.5 from 0.5B to 7B on titles (ACL Anthology).

Claim:    of arXiv 2512.23067: from 3B on, in-context learning beats every reward-guided method, by about 3 ROUGE-1
          at 7B. Reported as met or not met for each size, never forced.
Command:  for size in 0.5B 1.5B 3B 7B; do
            jaxalign run experiments/scaling_qwen25.py --model Qwen/Qwen2.5-$size-Instruct --data FOLDER \
              --out results/scaling/$size
          done
          jaxalign compare results/scaling/0.5B results/scaling/7B
          FOLDER holds the Anthology's XML, or papers.jsonl and authorship.csv.
Hardware: one TPU v5e-16 slice, or GPUs of 80 GB.
Mesh:     --mesh users=16,model=1 up to 3B, users=4,model=4 for 7B (docs/planning.md has its memory).
Time:     not measured: no such machine was at hand. `--dry-run` estimates it.
Expected: not known.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="scaling_qwen25",
    title="In-context learning against guidance over model sizes",
    source="acl_titles",
    model="Qwen/Qwen2.5-0.5B-Instruct",
    dtype="bfloat16",
    min_pairs=8,
    shots=(1, 2, 5),
    response_tokens=32,
    batch_size=64,
    writing_users=200,
    prompts_per_user=1,
    in_context=("in_context_random_4", "in_context_bm25_4", "in_context_others_bm25_4"),
)
