"""The labs by name: what each claims, what can be changed, and the module that runs it, imported only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from anaphor.labs import specs
from anaphor.labs.lab import Draw, Outcome
from anaphor.labs.specs import LabSpec


@dataclass(frozen=True)
class Lab:
    """One line of the table. Its module has `run(spec) -> Outcome` and `draw(outcome, folder) -> list[Path]`."""

    module: str
    spec: type[LabSpec]
    claim: str

    def run(self, spec: LabSpec | None = None) -> Outcome:
        """Run the lab on the given inputs, or on its own."""
        outcome: Outcome = self._loaded().run(self.spec() if spec is None else spec)
        return outcome

    def draw(self, outcome: Outcome, folder: Path) -> list[Path]:
        draw: Draw = self._loaded().draw
        return draw(outcome, folder)

    def _loaded(self) -> Any:
        return import_module(f"anaphor.labs.{self.module}")


LABS: dict[str, Lab] = {
    "backprop": Lab(
        "backprop",
        specs.BackpropSpec,
        "backpropagation by hand, node by node, gives the same gradients as autograd, and exactly so in fractions",
    ),
    "kronecker": Lab(
        "kronecker",
        specs.KroneckerSpec,
        "self-attention is a fully connected layer with the matrix I ⊗ A, which changes with every input",
    ),
    "unroll": Lab(
        "unroll",
        specs.UnrollSpec,
        "a linear recurrent network is a sum, h_T = Σ W_h^(T-t) W_x x_t, so the spectral radius of W_h decides "
        "what is left of the first input",
    ),
    "bptt": Lab(
        "bptt",
        specs.BpttSpec,
        "backpropagation through time is ŷ − y carried back by the transposed recurrent matrix, summed over steps",
    ),
    "complexity": Lab(
        "complexity",
        specs.ComplexitySpec,
        "attention costs n² in the length n; recurrent, pooled, linear and low-rank layers cost n",
    ),
    "low-rank": Lab(
        "low_rank",
        specs.LowRankLabSpec,
        "a matrix of weights of rank k acts on values in O(nkd) exactly; a softmax in between breaks the projection",
    ),
    "scaling": Lab(
        "scaling",
        specs.ScalingSpec,
        "q·k has mean hμ² and variance h(σ⁴ + 2μ²σ²), so without √h a softmax saturates as h grows",
    ),
    "masking": Lab(
        "masking",
        specs.MaskingSpec,
        "a masked token has no influence: its weights and gradients are zero to the last bit",
    ),
    "concepts": Lab(
        "concepts",
        specs.ConceptsSpec,
        "sixteen questions about language models have answers that can be run",
    ),
    "selection": Lab(
        "selection",
        specs.SelectionSpec,
        "a query can select a key exactly when the key lies outside the hull of the others",
    ),
}
