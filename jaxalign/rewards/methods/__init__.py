"""The published ways to personalise a reward model, one file each."""
