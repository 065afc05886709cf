"""Maps and instrumented models on the Hub: `MapStore`, and pointers to base models. A stored map
opens without a model.
"""

from __future__ import annotations

from ctxmix_hf.registry import VIEWS

VIEWS.add(  # what the core asks the Hub for, by name: it imports nothing from here
    __name__,
    {
        "model.push": "pointers:push",
        "model.pointer": "pointers:find_pointer",
        "model.revision": "pointers:loaded_revision",
    },
)
