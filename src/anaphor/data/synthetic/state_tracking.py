"""The data sets `parity`, `modular` and `permutations`: after every token a state is asked, which the next one changes.

    parity        1 0 1 1          odd odd even odd
    modular       3 + 4 * 2        3 . 2 . 1             (modulo 5; a product goes before a sum)
                  ( 3 + ( 4 * 2 ) )      . . . . . . . 3 1
    permutations  213 132 321      213 312 132

The answers do not stand in the sequence: they are what a model says after each token. Weights between 0 and 1 that
multiply a state cannot swap anything, so that layers with nothing else learn none of these at all lengths (Grazzi et
al., 2024; Merrill, Petty and Sabharwal, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from anaphor.config import check_range, look_up
from anaphor.data.synthetic.base import MAX_LENGTH, NO_ANSWER, Answered, Ids, SyntheticDataset
from anaphor.errors import ConfigError


@dataclass(kw_only=True, eq=False)
class Parity(SyntheticDataset):
    """Bits; after each: is the number of ones so far even or odd?"""

    name = "parity"

    length: int = 32
    """Bits of a sequence."""

    def check(self) -> None:
        check_range(1, MAX_LENGTH // self.longer[-1], length=self.length)

    @property
    def words(self) -> tuple[str, ...]:
        return ("0", "1", "even", "odd")

    def count_tokens(self, times: int) -> int:
        return times * self.length

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        tokens = random.randint(2, size=(rows, times * self.length))
        return Answered(tokens, 2 + tokens.cumsum(1) % 2)


OPERATORS = ("+", "-", "*")


@dataclass(kw_only=True, eq=False)
class Modular(SyntheticDataset):
    """Arithmetic modulo a number; after each number, or each closing bracket: the value so far."""

    name = "modular"

    length: int = 10
    """Operations of a sequence."""
    modulus: int = 5
    """Numbers are 0 to modulus - 1."""
    brackets: bool = False
    """Whether every operation stands in brackets, nested at random. Without, products go before sums."""

    def check(self) -> None:
        check_range(1, MAX_LENGTH // (4 * self.longer[-1]), length=self.length)
        check_range(2, 100, modulus=self.modulus)

    @property
    def words(self) -> tuple[str, ...]:
        return (*OPERATORS, "(", ")", *map(str, range(self.modulus)))

    @property
    def _first_number(self) -> int:
        return len(OPERATORS) + 2

    def count_tokens(self, times: int) -> int:
        return 1 + (4 if self.brackets else 2) * times * self.length

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        count = times * self.length
        operators = random.randint(len(OPERATORS), size=(rows, count))
        numbers = random.randint(self.modulus, size=(rows, count + 1))
        if self.brackets:
            shapes = random.random_sample((rows, count))
            drawn = [
                self._nest(*row) for row in zip(operators.tolist(), numbers.tolist(), shapes.tolist(), strict=True)
            ]
            tokens, answers = (np.array(part, np.int64) for part in zip(*drawn, strict=True))
            return Answered(tokens, answers)
        first, tokens = self._first_number, np.empty((rows, 2 * count + 1), np.int64)
        tokens[:, ::2], tokens[:, 1::2] = first + numbers, operators
        answers = np.full_like(tokens, NO_ANSWER)
        # Of the terms before the last one, and of the product that is still open.
        total, term = np.zeros(rows, np.int64), numbers[:, 0]
        answers[:, 0] = first + term
        for place in range(count):
            operator, number = operators[:, place], numbers[:, place + 1]
            is_product = operator == OPERATORS.index("*")
            total = np.where(is_product, total, total + term) % self.modulus
            signed = np.where(operator == OPERATORS.index("-"), -number, number)
            term = np.where(is_product, term * number, signed) % self.modulus
            answers[:, 2 * place + 2] = first + (total + term) % self.modulus
        return Answered(tokens, answers)

    def _nest(self, operators: list[int], numbers: list[int], shapes: list[float]) -> tuple[list[int], list[int]]:
        """Tokens and answers of one expression; `shapes` say how many operations stand on the left of each."""
        tokens: list[int] = []
        answers: list[int] = []
        # What is still to be written, last first: a number of operations, a word, or the end of a bracket.
        pending: list[tuple[str, int]] = [("operations", len(operators))]
        values: list[int] = []
        while pending:
            kind, value = pending.pop()
            answer = NO_ANSWER
            if kind == "operations" and value:
                left, operator = int(shapes.pop() * value), operators.pop()
                pending += [
                    ("close", operator),
                    ("operations", value - 1 - left),
                    ("word", operator),
                    ("operations", left),
                ]
                kind, value = "word", self.words.index("(")
            elif kind == "operations":
                number = numbers.pop()
                values.append(number)
                kind, value = "word", self._first_number + number
            elif kind == "close":
                second, first = values.pop(), values.pop()
                result = (first + second, first - second, first * second)[value] % self.modulus
                values.append(result)
                answer, value = self._first_number + result, self.words.index(")")
            tokens.append(value)
            answers.append(answer)
        return tokens, answers


@dataclass(frozen=True)
class Group:
    """Permutations that are closed under composition."""

    names: tuple[str, ...]
    """Each as the images of 1, 2, 3, …: `213` exchanges the first two."""
    swaps: Ids
    """Those that exchange two, and the one that exchanges none."""
    products: Ids
    """[N, N]: the element that applies the column's after the row's."""


@cache
def find_group(name: str) -> Group:
    """The group of that name: S3, A5 or S5."""
    size, is_even = {"S3": (3, False), "A5": (5, True), "S5": (5, False)}[name]
    elements = np.array([one for one in permutations(range(size)) if not is_even or _count_inversions(one) % 2 == 0])
    index = {tuple(one): number for number, one in enumerate(elements.tolist())}
    products = [[index[tuple(after[before].tolist())] for after in elements] for before in elements]
    names = tuple("".join(str(1 + image) for image in one) for one in elements.tolist())
    is_swap = (elements != np.arange(size)).sum(1) <= 2
    return Group(names, np.flatnonzero(is_swap), np.array(products))


def _count_inversions(permutation: tuple[int, ...]) -> int:
    return sum(permutation[i] > permutation[j] for j in range(len(permutation)) for i in range(j))


GROUPS = dict.fromkeys(("S3", "A5", "S5"))


@dataclass(kw_only=True, eq=False)
class Permutations(SyntheticDataset):
    """Permutations; after each: their product so far (the word problem of a group)."""

    name = "permutations"

    group: str = "S3"
    """Group: S3, A5 or S5. A5 and S5 are not solvable."""
    length: int = 16
    """Permutations of a sequence."""
    swaps: bool = False
    """Whether the sequence has only permutations that exchange two elements, or none. Their products are
    the whole group all the same."""

    def check(self) -> None:
        look_up(GROUPS, self.group, "group")
        if self.swaps and self.group == "A5":
            raise ConfigError("swaps=True: no permutation of A5 exchanges two elements alone; use S3 or S5")
        check_range(1, MAX_LENGTH // self.longer[-1], length=self.length)

    @property
    def words(self) -> tuple[str, ...]:
        return find_group(self.group).names

    def count_tokens(self, times: int) -> int:
        return times * self.length

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        group = find_group(self.group)
        products, choices = group.products, group.swaps if self.swaps else np.arange(len(group.names))
        tokens = choices[random.randint(len(choices), size=(rows, times * self.length))]
        answers = tokens.copy()
        for place in range(1, tokens.shape[1]):
            answers[:, place] = products[answers[:, place - 1], tokens[:, place]]
        return Answered(tokens, answers)
