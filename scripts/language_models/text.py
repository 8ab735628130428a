"""Text as tokens: a byte-pair encoding learnt from the text itself (Sennrich et al., arXiv 1508.07909), and batches of it."""
import collections
import hashlib
import json
import os
import pathlib
import re

import numpy as np

# A word goes with the space before it, as in GPT-2, so that joining tokens gives the text back.
_PIECES = re.compile(rb" ?[A-Za-z]+| ?[0-9]+|\s+(?=\s)| ?[^\sA-Za-z0-9]+|\s+")


class Tokenizer:
    """Tokens 0 to 255 are the bytes; token 256 + i is the pair merges[i] of earlier tokens."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.vocabulary = 256 + len(self.merges)
        self._rank = {pair: rank for rank, pair in enumerate(self.merges)}

    def encode(self, data):
        known, tokens = {}, []
        for piece in _PIECES.findall(data):
            if piece not in known:
                known[piece] = self._encode_piece(piece)
            tokens.extend(known[piece])
        return np.array(tokens, np.int64)

    def _encode_piece(self, piece):
        tokens = list(piece)
        while len(tokens) > 1:
            first = min(zip(tokens, tokens[1:]), key=lambda pair: self._rank.get(pair, len(self._rank)))
            if first not in self._rank:
                break
            tokens = _merged(tokens, first, 256 + self._rank[first])
        return tokens

    def decode(self, tokens):
        parts = [bytes([byte]) for byte in range(256)]
        for left, right in self.merges:
            parts.append(parts[left] + parts[right])
        return b"".join(parts[token] for token in tokens)


def _merged(tokens, pair, name):
    result, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i:i + 2]) == pair:
            result.append(name)
            i += 2
        else:
            result.append(tokens[i])
            i += 1
    return result


def learn_merges(data, vocabulary):
    """The pairs that become tokens: again and again the most frequent one, the earlier one in byte order where two are equal."""
    words = [[list(piece), count] for piece, count in collections.Counter(_PIECES.findall(data)).items()]
    counts, where = collections.Counter(), collections.defaultdict(set)
    for index, (word, count) in enumerate(words):
        for pair in zip(word, word[1:]):
            counts[pair] += count
            where[pair].add(index)
    merges = []
    while len(merges) < vocabulary - 256 and counts:
        best = max(counts, key=lambda pair: (counts[pair], -pair[0], -pair[1]))
        if counts[best] < 2:
            break
        for index in where.pop(best):
            word, count = words[index]
            for pair in zip(word, word[1:]):
                counts[pair] -= count
            words[index][0] = word = _merged(word, best, 256 + len(merges))
            for pair in zip(word, word[1:]):
                counts[pair] += count
                where[pair].add(index)
        del counts[best]
        merges.append(best)
    return merges


def tokenizer_of(data, vocabulary, folder=None):
    """The tokenizer learnt from this text, at most `vocabulary` tokens; kept in `folder`, because learning takes seconds."""
    if vocabulary <= 256:
        return Tokenizer([])
    folder = pathlib.Path(folder or os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "gradtool"
    path = folder / f"bpe-{hashlib.sha256(data).hexdigest()[:32]}-{vocabulary}.json"
    if path.exists():
        return Tokenizer(json.loads(path.read_text()))
    merges = learn_merges(data, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{path.name}.{os.getpid()}.part"
    part.write_text(json.dumps(merges))
    part.replace(path)
    return Tokenizer(merges)


class Batches:
    """Windows of a text at random places, the same for the same seed, rank and step. The last twentieth of it is held out."""

    def __init__(self, tokens, context, batch, seed):
        self.context, self.batch, self.seed = context, batch, seed
        held = max(len(tokens) // 20, context + 2)
        if len(tokens) < 2 * held:
            raise ValueError(f"the text has {len(tokens)} tokens; a context of {context} needs at least {2 * held}")
        self.training, self.held_out = tokens[:-held], tokens[-held:]

    def at(self, rank, step):
        """Tokens and targets, [batch, context] each; a target is the token that follows."""
        return self._windows(self.training, np.random.default_rng([self.seed, rank, step]), self.batch)

    def for_validation(self, windows=32):
        return self._windows(self.held_out, np.random.default_rng(0), windows)

    def _windows(self, tokens, generator, count):
        starts = generator.integers(0, len(tokens) - self.context, count)
        windows = np.stack([tokens[start:start + self.context + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]
