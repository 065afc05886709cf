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
RECOMMENDED = ("alti", "value_zeroing", "globenc", "attention_rollout")
GROUPS = ("Recommended", "What made this vector", "Attention", "Flow")


def people_name(method: str) -> str:
    """`alti` is ALTI, `alti+flow` is ALTI (flow); a name nobody listed is read out as it is written."""
    base, _, way = method.partition("+")
    named = NAMES.get(base, base.replace("_", " "))
    return f"{named} ({way})" if way else named


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
