"""What stands between the head of a language model and its predictions: nothing, or an extra with predictions of its
own, such as one that copies words of the past."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import Span, count_bytes
from anaphor.models.cross_entropy import IGNORE_INDEX, cross_entropy, token_losses, widen
from anaphor.models.head import Head


class HeadWrapper(nn.Module):
    """Sees what the layers and the head compute, and may change what is predicted. The defaults change nothing.

    The losses follow from `predict`, with all logits in memory at once. A subclass may have weights, and a state, which
    becomes a part of the model's.
    """

    def initial_state(self, rows: int) -> Any:
        """State before the first token: tensors, numbers and tuples of them, or () for none. A tensor keeps its shape
        from call to call; what has none at first, or another one each time, begins as None."""
        return ()

    def extend(self, state: Any, hidden_states: Tensor, tokens: Tensor, span: Span) -> Any:
        """The state after new tokens. It is passed on from call to call and cut, selected and saved with the model's.

        Args:
            state: The state before them.
            hidden_states: [B, T, D]: what the layers make of them, before output dropout.
            tokens: [B, T]
            span: Their positions, and which of them are padding.
        """
        return state

    def state_bytes(self) -> int:
        """Bytes of one row's state."""
        return count_bytes(self.initial_state(1))

    def predict(self, logits: Tensor, state: Any) -> Tensor:
        """What follows each of the newest T tokens, as logits or log-probabilities, from the logits of the head and the
        state after them. [B, T, V] -> [B, T, V]"""
        return logits

    def predict_next(self, logits: Tensor, state: Any) -> Tensor:
        """The same after the last token of each row only. Where rows may end with padding, a state that depends on it
        has to be looked up for that token. [B, V] -> [B, V]"""
        return self.predict(logits[:, None], state)[:, 0]

    def cross_entropy(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any) -> Tensor:
        """Sum of the losses of the newest tokens, from what the head reads. [B, T, D], [B, T] -> []"""
        return self._losses(hidden_states, head, targets, state).sum()

    def cross_entropy_by_token(
        self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any
    ) -> tuple[Tensor, Tensor]:
        """The same sum, and the loss of each token without gradient, zero where there is no target [B, T]: the logits
        are computed once for both."""
        losses = self._losses(hidden_states, head, targets, state)
        return losses.sum(), losses.detach()

    def token_losses(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any) -> Tensor:
        """The loss of each of the newest tokens without gradient, zero where there is no target. [B, T]"""
        return self._losses(hidden_states, head, targets, state).detach()

    def _losses(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any) -> Tensor:
        predicted = widen(self.predict(head(hidden_states), state)).transpose(1, 2)  # [B, V, T], as torch has classes
        return F.cross_entropy(predicted, targets, reduction="none", ignore_index=IGNORE_INDEX)

    def metadata(self) -> dict[str, Any]:
        """What the signature of a score says of it."""
        return {}


class PlainHead(HeadWrapper):
    """Nothing stands between. The logits are never all in memory."""

    def predict_next(self, logits: Tensor, state: Any) -> Tensor:
        return logits

    def cross_entropy(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any) -> Tensor:
        return cross_entropy(hidden_states, head, targets)

    def cross_entropy_by_token(
        self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any
    ) -> tuple[Tensor, Tensor]:
        losses = widen(hidden_states.new_empty(targets.numel()))
        total = cross_entropy(hidden_states, head, targets, token_losses=losses)
        return total, losses.view(targets.shape).masked_fill(targets == IGNORE_INDEX, 0)

    def token_losses(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Any) -> Tensor:
        return token_losses(hidden_states, head, targets)


PLAIN_HEAD = PlainHead()
"""It has neither weights nor a mode, so that all models can share it."""
