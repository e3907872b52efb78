"""A byte-level vocabulary of your own: the most frequent pairs of neighbours in your text become tokens.

All 256 bytes are tokens, so every text can be written, and comes back as it was. The same text gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from handgrad.core.errors import ConfigError
from handgrad.data.engine import library, refused
from handgrad.data.library import Library, byte_alphabet, byte_level
from handgrad.data.streaming import safe_pieces

LEAST, MOST = 256, 1 << 20
PIECE = 1 << 16  # characters that the library is given at once; it holds a few hundred of such pieces


def size_of(spec: str) -> int:
    """The N of "bpe:N". Raises ConfigError.

    >>> size_of("bpe:512")
    512
    """
    number = spec.partition(":")[2]
    size = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else -1
    if not LEAST <= size <= MOST:
        raise ConfigError(
            f"tokenizer {spec!r}: write bpe:N with the number N of tokens, from {LEAST} (the bytes alone) to {MOST}, "
            "such as bpe:2048"
        )
    return size


def train_bpe(texts: Iterable[str], size: int) -> Library:
    """A vocabulary of at most `size` tokens, of a text in pieces; fewer where no pair comes twice any more.

    >>> tokenizer = train_bpe(["the cat and the dog and the cow " * 4], 260)
    >>> tokenizer.vocab_size, [tokenizer.decode([i]) for i in range(256, 260)]
    (260, ['he', 'the', ' the', 'an'])
    """
    module: Any = library()
    trainer = module.trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=sorted(byte_alphabet())
    )
    made = module.Tokenizer(module.models.BPE())
    made.pre_tokenizer = module.pre_tokenizers.ByteLevel(add_prefix_space=False)
    with refused():
        made.train_from_iterator(small(safe_pieces(texts)), trainer)
    model = Library.parsed(made.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return Library(byte_level(model["vocab"], merges, {}), asked=size)


def small(texts: Iterable[str]) -> Iterable[str]:
    """Long pieces cut after line ends, which no token reaches over."""
    for text in texts:
        lines = text.splitlines(keepends=True)
        held: list[str] = []
        n = 0
        for line in lines:
            held.append(line)
            n += len(line)
            if n >= PIECE:
                yield "".join(held)
                held, n = [], 0
        if held:
            yield "".join(held)
