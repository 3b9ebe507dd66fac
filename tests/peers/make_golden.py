"""Writes `tests/models/golden/*.npz`: logits of the torch models, for a suite that has no torch.

    python tests/peers/make_golden.py

Each file holds the ids `[length]`, and float32 logits `[length, vocab]` of the Hugging Face model in float32 at the
positions `tiny.POSITIONS`. Weights are those of `tiny.tensors(config)`, made from a seed again.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny

GOLDEN = Path(__file__).parents[1] / "models" / "golden"


def torch_model(folder: Path):
    """The Hugging Face model of a folder, in float32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def torch_logits(model, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """`[length, vocab]` float32 logits of one sequence."""
    import torch

    tokens = torch.tensor(ids[None].astype(np.int64))
    with torch.no_grad():
        # Without a mask, the library takes a jump of the positions for the start of another, packed sequence.
        return (
            model(
                tokens,
                attention_mask=torch.ones_like(tokens),
                position_ids=torch.tensor(positions[None].astype(np.int64)),
            )
            .logits[0]
            .numpy()
        )


def main() -> None:
    import torch
    import transformers

    for name, config in tiny.CONFIGS.items():
        ids = tiny.tokens(config, 1, 20)[0]
        with tempfile.TemporaryDirectory() as folder:
            model = torch_model(tiny.save(Path(folder), config))
        logits = {f"logits_{place}": torch_logits(model, ids, at) for place, at in tiny.POSITIONS.items()}
        made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"
        np.savez_compressed(GOLDEN / f"{name}.npz", ids=ids, made_by=np.array(made_by), **logits)


if __name__ == "__main__":
    main()
