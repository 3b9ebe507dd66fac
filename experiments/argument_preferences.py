"""RM accuracy against policy accuracy on arguments that people found more convincing (UKPConvArg1).

Claim:    of arXiv 2512.23067: ranking accuracy of a personal reward model says little about the policy that it guides.
          Reported as met or not met, never forced.
Command:  jaxalign run experiments/argument_preferences.py --data FOLDER
          FOLDER holds UKPConvArg1: the official XML files, or arguments.jsonl and votes.csv.
Hardware: 2 CPU cores, SmolLM2-135M.
Time:     76 core minutes: 13 for features, 63 for the rest (52 minutes beside other work; not measured alone).
          A smaller `test_prompts` takes less.
Expected: RM accuracy 73 to 77 % (drm 62 %), policy accuracy 60 to 62 % for all and for the language model alone, in the
          form `sequence` 65 to 77 % (docs/results.md).
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(
    name="argument_preferences",
    title="Which argument convinces? 134 users of UKPConvArg1, SmolLM2-135M",
    source="ukp",
    methods=("bt", "per_user", "user_embedding", "lore", "pref", "pal", "vpl", "mrm", "gpo", "drm"),
    min_pairs=50,
    test_prompts=12,
    top_ks=(5,),
    weights=(0.25, 0.5, 1.0, 2.0, 4.0),
    response_tokens=32,
    writing_users=4,
    prompts_per_user=1,
    validation_prompts=1,
    in_context=("in_context_bm25_2", "graded_bm25_1"),
    in_context_budget=240,
    in_context_pairs=1,
)
