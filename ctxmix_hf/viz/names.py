"""Methods under the names people know them by, in the groups they look for them in."""

from __future__ import annotations

NAMES = {
    "alti": "ALTI",
    "value_zeroing": "Value Zeroing",
    "globenc": "GlobEnc",
    "decompx": "DecompX",
    "norm": "Vector norms (N)",
    "norm_res": "Vector norms with residual (N-Res)",
    "norm_resln": "Vector norms with residual and norm (N-ResLN)",
    "norm_fixedres": "Vector norms, fixed residual",
    "norm_enc": "Vector norms of the whole layer (N-Enc)",
    "norm_ff": "Vector norms with feed-forward",
    "norm_rollout": "Vector-norm rollout",
    "hta": "Hidden token attribution (HTA)",
    "hta_x_input": "HTA times input",
    "attention": "Attention weights",
    "attention_fixedres": "Attention, fixed residual",
    "attention_res": "Attention, true residual (W-Res)",
    "effective_attention": "Effective attention",
    "attention_rollout": "Attention rollout",
    "attention_flow": "Attention flow",
    "blank_out": "Blank-out",
    "integrated_gradients": "Integrated gradients",
    "grad_x_input": "Gradient times input",
    "ledger": "Ledger",
}
# What can be set of a method: its label, and one line of help. A setting nobody listed is read out as it is written.
OPTIONS = {
    "norm": (
        "Distance",
        "How the distance of two vectors is taken: over each number, or straight.",
    ),
    "through": (
        "Measured after",
        "Where the parts are compared: after attention, or after the whole layer.",
    ),
    "public_code": (
        "As the authors' code computes it",
        "Repeats small deviations of the published code from its paper.",
    ),
    "per_head": ("Every head by itself", "Adds a view of heads: each one's map within its layer."),
    "residual": ("Weight of the token itself", "What the layer hands on unchanged: 0.5 is half."),
    "biases": ("Biases go to", "Which token's part a bias of the model is added to."),
    "row_normalised": ("Rows sum to 1", "Divides each row by its sum."),
    "value_bias": ("With the bias of the values", "Off is the formula as Brunner et al. print it."),
    "visible_only": (
        "Only tokens a row can see",
        "For causal models: nothing lies on tokens that come later.",
    ),
    "part": ("Part of attention", "What reaches the output, or what no output shows."),
    "times_input": ("Times the input", "Each derivative times the vector it is taken at."),
    "sketch": ("Random probes", "More probes, a closer estimate; 0 computes it exactly."),
    "with_respect_to": (
        "Starts from",
        "The sum of the embeddings, or what their norm makes of it.",
    ),
    "row_shares": ("As shares of a row", "Off shows the measured lengths or distances themselves."),
    "distance": ("Distance", "How far the output moves when a token's values are zeroed."),
    "normalised": ("Vectors of length 1", "Compares directions only; with the straight distance."),
}
CHOICES: dict[str, dict[object, str]] = {
    "norm": {1: "sum of differences (L1)", 2: "straight line (L2)"},
    "through": {"norm1": "attention", "norm2": "the whole layer"},
    "biases": {
        "absdot": "parts by their overlap with it (the paper's)",
        "abssim": "parts by their direction",
        "norm": "parts by their length",
        "equal": "all parts alike",
        "first": "the first token",
        "none": "nobody",
    },
    "part": {"effective": "reaches the output", "null": "reaches no output"},
    "with_respect_to": {"embedding_sum": "the sum of embeddings", "e0": "after their norm"},
    "distance": {
        "cosine": "angle (cosine)",
        "euclidean": "straight line (Euclidean)",
        "spearman": "order of the numbers (Spearman)",
    },
}
RECOMMENDED = ("alti", "value_zeroing", "globenc", "attention_rollout")
GROUPS = ("Recommended", "What made this vector", "Attention", "Flow")


def people_name(method: str) -> str:
    """`alti` is ALTI, `alti+flow` is ALTI (flow); a name nobody listed is read out as it is written."""
    base, _, way = method.partition("+")
    named = NAMES.get(base, base.replace("_", " "))
    return f"{named} ({way})" if way else named


def option_name(option: str) -> tuple[str, str]:
    """The label of a setting and its help in one line, in people's words."""
    return OPTIONS.get(option, (option.replace("_", " "), ""))


def listed_name(method: str) -> str:
    """As a list of all methods shows it: its name, and the group it stands in."""
    return f"{people_name(method)} · {group_of(method).lower()}"


def group_of(method: str) -> str:
    """Where a list of methods shows it."""
    if "+" in method:
        return "Flow"
    if method in RECOMMENDED:
        return "Recommended"
    return "Attention" if "attention" in method else "What made this vector"
