"""The uncased WordPiece tokenizer of the bundled models, trained on the training texts only."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LARGEST = 8000
LONGEST = 128


def train_tokenizer(texts: Iterable[str], whole_words: Iterable[str]) -> PreTrainedTokenizerBase:
    """A BERT tokenizer in which every one of `whole_words` is a single piece, within `LARGEST` pieces.

    Targets and foils must be single pieces: the logit of half a word says nothing about the word.
    """
    wanted = sorted({word.lower() for word in whole_words if word.isalpha()})
    learned = _learn(texts, LARGEST - len(wanted))
    missing = [word for word in wanted if word not in set(learned)]
    pieces = learned + missing
    assert len(pieces) <= LARGEST
    return as_bert({piece: index for index, piece in enumerate(pieces)})


def _learn(texts: Iterable[str], size: int) -> list[str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def as_bert(vocabulary: dict[str, int]) -> PreTrainedTokenizerBase:
    """The vocabulary inside the tokenizer class that AutoTokenizer finds for BERT."""
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=LONGEST)


def as_single_piece(tokenizer: PreTrainedTokenizerBase, word: str) -> int | None:
    """The id of `word`, or None if the tokenizer cuts it up or does not know it."""
    pieces = tokenizer.encode(word, add_special_tokens=False)
    return pieces[0] if len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id else None
