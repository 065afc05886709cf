"""Drawing, and nothing else: the widget (notebook, HTML, Space), the terminal, matplotlib, pictures and sounds.

Results find these functions by name (`registry.VIEWS`): a new drawing is a function here and a line below.
"""

from __future__ import annotations

from ctxmix_hf.registry import VIEWS

VIEWS.add(
    __name__,
    {
        "map.text": "terminal:map_text",
        "map.fragment": "canvas:map_fragment",
        "map.page": "canvas:map_page",
        "map.payload": "payload:payload",
        "map.widget": "notebook:map_widget",
        "map.target": "notebook:map_target",
        "map.bundle": "notebook:map_bundle",
        "map.plot": "figures:plot_map",
        "map.plot_layers": "figures:plot_layers",
        "map.plot_views": "figures:plot_views",
        "map.plot_grid": "figures:plot_grid",
        "map.plot_image": "signals:plot_image",
        "map.plot_speech": "signals:plot_speech",
        "attribution.text": "terminal:attribution_text",
        "attribution.fragment": "canvas:attribution_fragment",
        "attribution.page": "canvas:attribution_page",
        "attribution.plot": "figures:plot_attribution",
        "ledger.text": "accounts:ledger_text",
        "ledger.fragment": "accounts:ledger_fragment",
        "ledger.page": "accounts:ledger_page",
        "ledger.plot": "accounts:plot_ledger",
        "similarity.text": "pairing:similarity_text",
        "similarity.fragment": "pairing:similarity_fragment",
        "similarity.page": "pairing:similarity_page",
        "similarity.plot": "pairing:plot_similarity",
        "ranking.text": "pairing:ranking_text",
        "ranking.fragment": "pairing:ranking_fragment",
        "ranking.page": "pairing:ranking_page",
        "ranking.plot": "pairing:plot_ranking",
        "difference.text": "differences:difference_text",
        "difference.payload": "differences:difference_payload",
        "difference.fragment": "differences:difference_fragment",
        "difference.page": "differences:difference_page",
        "difference.plot": "figures:plot_difference",
    },
)
