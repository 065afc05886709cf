"""What people hold and pass on, as types: nothing is imported for them at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    Tokenizer: TypeAlias = PreTrainedTokenizerBase
    Model: TypeAlias = nn.Module  # transformers' own, compiled, adapted, or sentence-transformers'
else:
    Tokenizer = Model = Any
