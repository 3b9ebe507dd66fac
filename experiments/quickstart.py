"""Quickstart: do personal reward models that rank better also steer better?

Claim:    on users whose taste is known, a reward model per user ranks their choices better than one for all; whether
          the policy that it guides ranks them better too is what the table shows.
Command:  jaxalign run experiments/quickstart.py
          jaxalign run experiments/quickstart.py --data FILE.jsonl --out results/mine     (your own preferences)
Hardware: 2 CPU cores; SmolLM2-135M is fetched once (100 MB).
Time:     about 5 minutes after the download.
Expected: RM accuracy of `per_user` above `bt`, both under the oracle; policy accuracy much nearer to the language
          model's own ranking when log-probabilities are summed.
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(name="quickstart")
