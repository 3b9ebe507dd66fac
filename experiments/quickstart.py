"""Quickstart: do personal reward models that rank better also steer better?

Claim:    none is built in: on users whose taste is known, the table shows how well reward models rank their choices,
          how well the policies that they guide do, and how far both are from the oracle.
Command:  jaxalign run experiments/quickstart.py
          jaxalign run experiments/quickstart.py --data FILE.jsonl --out results/mine     (your own preferences)
Hardware: 2 CPU cores; SmolLM2-135M is fetched once (100 MB).
Time:     9 minutes where both cores were shared with other work, after the download.
Expected: RM accuracy near 50 % (52.7 bt, 49.1 per_user), the oracle at 80.5 %: 400 short responses are few for heads
          of 576 numbers. Policy accuracy stays near the language model alone (54.4 %).
"""

from jaxalign.evaluation.experiment import Experiment

experiment = Experiment(name="quickstart")
