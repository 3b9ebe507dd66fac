"""Pref-LaMP style benchmark with real texts: titles that authors wrote for their own abstracts (ACL Anthology).

A pair prefers the author's title over another author's, of the paper whose abstract is nearest. A title belongs to all
authors of a paper, so "own text" means co-authored text. `--rejected lm_sample` takes titles that the language model
sampled instead; with SmolLM2-135M those are too easy: all ten methods rank every validation pair right.

Claim:    of arXiv 2512.23067: methods that rank far better need not write more like the user, and in-context learning
          is hard to beat. Reported as met or not met, never forced.
Command:  jaxalign run experiments/title_writing.py --data FOLDER
          FOLDER holds the Anthology's XML, or papers.jsonl and authorship.csv.
Hardware: 2 CPU cores, SmolLM2-135M.
Time:     not measured; `--dry-run` estimates it. With `--rejected lm_sample`, beside other work, sampling, features,
          fits and judging took 60 core minutes, and in-context policies and texts are as many tokens again.
Expected: no result is on record yet.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="title_writing",
    title="Titles as their authors write them: ACL Anthology, SmolLM2-135M",
    source="acl_titles",
    methods=("bt", "per_user", "user_embedding", "lore", "pref", "pal", "vpl", "mrm", "gpo", "drm"),
    users=24,
    min_pairs=8,
    rejected=("other_user",),
    shots=(1, 2, 5),
    weights=(0.25, 0.5, 1.0, 2.0, 4.0),
    top_ks=(5,),
    response_tokens=24,
    writing_users=5,
    prompts_per_user=1,
    validation_prompts=1,
    in_context=("in_context_random_4", "in_context_bm25_4", "in_context_others_bm25_4"),
    in_context_budget=600,
    in_context_pairs=1,
)
