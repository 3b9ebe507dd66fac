"""Sampled texts on disk: which text came out for a prompt, kept as it is made.

Like the feature cache: files of JSON lines that appear whole and never change, in a folder for each sampler.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxalign.data.prompts import Prompt, clean, identity
from jaxalign.errors import InputError
from jaxalign.files import write_atomic, write_json
from jaxalign.progress import Progress, silent


class SampleCache:
    """The samples of one sampler.

    Args:
      folder: shared by all samplers; each has a folder of its own in it.
      sampler: what the samples depend on besides the prompt.
    """

    def __init__(self, folder: str | Path, sampler: str):
        self.folder = Path(folder) / hashlib.sha256(sampler.encode()).hexdigest()[:24]
        if not (self.folder / "sampler.json").exists():
            write_json(self.folder / "sampler.json", {"sampler": sampler})
        self._texts: dict[tuple[str, int], str] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            content = path.read_bytes()
            if path.stem != _digest(content):
                logging.getLogger(__name__).warning("%s is damaged: its texts are sampled again.", path)
                continue
            for line in content.decode().splitlines():
                row = json.loads(line)
                self._texts.setdefault((row["prompt"], row["number"]), row["text"])

    def all(
        self,
        prompts: Sequence[Prompt],
        sample: Callable[[list[Prompt]], list[str]],
        samples: int,
        chunk: int,
        progress: Progress = silent,
    ) -> list[list[str]]:
        """`samples` texts for each prompt; those that are not there yet are sampled, each prompt once, and kept.

        Raises:
          InputError: `sample` gives another number of texts than prompts.
        """
        names = [hashlib.sha256(identity(prompt).encode("utf-8", "surrogatepass")).hexdigest() for prompt in prompts]
        first = dict(zip(reversed(names), reversed(prompts), strict=True))
        todo = [
            (name, number)
            for name in dict.fromkeys(names)
            for number in range(samples)
            if (name, number) not in self._texts
        ]
        if todo:
            with progress("responses of the language model", len(todo)) as done:
                for start in range(0, len(todo), chunk):
                    part = todo[start : start + chunk]
                    self._keep(part, sample([first[name] for name, _ in part]))
                    done(len(part))
        return [[self._texts[name, number] for number in range(samples)] for name in names]

    def _keep(self, part: Sequence[tuple[str, int]], texts: Sequence[str]) -> None:
        if len(texts) != len(part):
            raise InputError(f"The sampler gave {len(texts)} texts for {len(part)} prompts; it must give one each.")
        rows = [
            {"prompt": name, "number": number, "text": clean(text)}
            for (name, number), text in zip(part, texts, strict=True)
        ]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        write_atomic(self.folder / f"{_digest(content)}.jsonl", content)
        self._texts |= {(row["prompt"], row["number"]): row["text"] for row in rows}


def _digest(content: bytes) -> str:
    """The name of a file: damage to the content shows."""
    return hashlib.sha256(content).hexdigest()[:32]
