"""Tokenization by its definition: slow, plain, what the real one is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def sentencepiece_merge(text: str, scores: Mapping[str, float]) -> list[str]:
    """Symbols of `text` after merging by score: again and again the pair of neighbours
    whose text has the highest score, the left-most of equal ones, until no pair has one.

    Args:
        text: spaces written as U+2581.
        scores: score of each text that symbols may merge to.
    """
    symbols = list(text)
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            return symbols
        place = min(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def rank_merge(text: str, merges: Sequence[tuple[str, str]]) -> list[str]:
    """Symbols of `text` after merging by rank: again and again the pair of neighbours that
    comes first in `merges`, the left-most of equal ones."""
    ranks = {pair: rank for rank, pair in reversed([*enumerate(merges)])}
    symbols = list(text)
    while True:
        pairs = [
            (ranks[pair], place)
            for place, pair in enumerate(itertools.pairwise(symbols))
            if pair in ranks
        ]
        if not pairs:
            return symbols
        place = min(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def split_specials(text: str, specials: Sequence[str]) -> list[tuple[str, bool]]:
    """The text from left to right as (piece, is a special token): at each place the longest
    special token that stands there."""
    pieces: list[tuple[str, bool]] = []
    plain = ""
    while text:
        standing = [special for special in specials if text.startswith(special)]
        if not standing:
            plain, text = plain + text[0], text[1:]
            continue
        if plain:
            pieces.append((plain, False))
            plain = ""
        longest = max(standing, key=len)
        pieces.append((longest, True))
        text = text[len(longest) :]
    return [*pieces, (plain, False)] if plain else pieces
