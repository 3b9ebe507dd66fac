"""Quickstart: which personal reward model to deploy, for users whose taste is known.

Claim:    none is built in. The report shows how well reward models rank the users' choices, how well the policies that
          they guide do, what they write, and how far all of it is from the oracle.
Command:  jaxalign run experiments/quickstart.py
          jaxalign run experiments/quickstart.py --data FILE.jsonl --out results/mine     (your own preferences)
Hardware: 2 CPU cores; SmolLM2-135M is fetched once (100 MB).
Time:     7 minutes on 2 cores (12 core minutes), the download and conversion of the language model included.
Expected: RM accuracy of the oracle 96 %, of personal models (lore, pref, per_user, drm) 60 to 65 % for seen users, of
          `bt` 50 %; policy accuracy 53 to 56 %, of the language model alone 57 %: with 64 prompts and w up to 2,
          what is learned about ranking hardly moves the policy. In text, guided methods gain true utility on the
          plain model for some users; with 2 users of each group that is a look and no proof.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="quickstart",
    title="Quickstart: which reward model to deploy, SmolLM2-135M",
    methods=("bt", "per_user", "lore", "pref", "mrm", "drm"),
    pooling="mean",
    weights=(0.5, 2.0),
    users=16,
    prompts=64,
    responses=4,
    response_tokens=24,
    top_ks=(5,),
    shots=(1, 5, 20),
    writing_users=2,
    prompts_per_user=1,
    validation_prompts=1,
    in_context=("in_context_bm25_4",),
    in_context_pairs=1,
    in_context_budget=512,
)
