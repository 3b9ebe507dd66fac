"""Our weights as a Hugging Face torch model."""

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from jaxalign.models import LanguageModel, save_params


def load(lm: LanguageModel) -> Any:
    """The model in torch, with the same weights and dtype, on the device that torch has, with all cores of the CPU.

    Written to a folder and read back, so that a random model is the same random model in both.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # A newer name of `past_key_values`, which older releases do not know.
    warnings.filterwarnings("ignore", message="`past_key_values` is deprecated", category=FutureWarning)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        save_params(folder, lm.config, lm.params)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, lm.dtype))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
