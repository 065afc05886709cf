"""A faithfulness certificate: what was proved of a model, small enough to publish and easy to repeat."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers

from ctxmix_hf import __version__, loading
from ctxmix_hf.accounting import ledger
from ctxmix_hf.auto import model_path
from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.errors import CtxmixError, InputError
from ctxmix_hf.explaining import explain
from ctxmix_hf.hub.keys import tensor_bytes
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.session import instrumentation_of, require_instrumentation
from ctxmix_hf.modeling import instrument, uninstrument
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.text.batch import reads
from ctxmix_hf.text.kinds import Model
from ctxmix_hf.verification import noise_for, verify

SCHEMA = "ctxmix.certificate/1"
LIMIT = 1e-4  # relative, in float32: what parts may be off by, and what padding may change
WEIGHTS = (".safetensors", ".bin")
Certificate = dict[str, Any]
TEXT, MAPPING, WHOLE, YES_OR_NO = (str,), (dict,), (int,), (bool,)
NUMBER = (int, float, type(None))
# every field that is read again, and its types
FIELDS: dict[str, tuple[type, ...]] = {
    "sha256": TEXT,
    "model": MAPPING,
    "model.name": TEXT,
    "model.revision": (str, type(None)),
    "model.class": TEXT,
    "model.dtype": TEXT,
    "model.weights_sha256": TEXT,
    "probes": (list,),
    "exact": YES_OR_NO,
    "layers": WHOLE,
    "decomposed": WHOLE,
    "reconstruction_error": NUMBER,
    "ledger": MAPPING,
    "ledger.gap": NUMBER,
    "methods": MAPPING,
    "cases": MAPPING,
}


@keeps_modes
def certify(
    name: str,
    *,
    texts: Sequence[str] = (),
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Certificate:
    """What can be proved of a model here: do the parts add up, does a ledger balance, is it left as it was?

    Args:
        name: Hub id, folder, or a bundled model.
        texts: The sentences it is proved on; none: an example (noise for models that read images or sound).
        revision: Branch, tag or commit of the model; the certificate names the commit that was loaded.
        dtype: Load the model in this precision.
        device: Where it runs.
        trust_remote_code: Run the code that lies beside the model's weights.

    Returns:
        What JSON can hold: the model and the hashes of its weights, versions, the worst
        reconstruction error, the ledger's gap, every method's status and the cases of the contract.
        `check_certificate` derives it again.

    Raises:
        InputError: The model could not be loaded.
        UnsupportedModelError: A layer's parts do not add up.

    Example:
        >>> made = cm.certify("ctxmix/agreement")
        >>> print(made["exact"], made["reconstruction_error"])
    """
    model, reader = loading.load(
        name, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )
    kind = reads(model)
    if kind == "text":
        probes: list[Any] = list(texts) or [loading.example_of(name, reader)]
    elif texts:
        raise InputError(f"Texts are for models that read text: {name} reads {kind}.")
    else:
        probes = [noise_for(model, name)]
    weights, commit = state_digest(model), _commit(name, model)
    found = [verify(model, probe, reader if kind == "text" else None) for probe in probes]
    errors = [
        error
        for one in found
        for layer in one.layers
        for error in (layer.block_error, layer.layer_error)
        if error is not None
    ]
    gaps = [one.ledger for one in found if one.ledger is not None]
    reasons = {one.ledger_reason for one in found} - {""}
    cases = _cases(model, reader, probes, kind)
    cases["weights unchanged"] = {"passed": state_digest(model) == weights}
    made: Certificate = {
        "schema": SCHEMA,
        "model": {
            "name": name,
            "revision": commit or revision,
            "class": type(model).__name__,
            "model_type": model.config.model_type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights_sha256": weights,
            "files_sha256": _files(name),
        },
        "probes": [probe if isinstance(probe, str) else "noise, seed 0" for probe in probes],
        "versions": versions(),
        "exact": all(one.exact for one in found),
        "layers": len(found[0].layers),
        "decomposed": sum(layer.block_error is not None for layer in found[0].layers),
        "reconstruction_error": max(errors, default=None),
        "ledger": {"gap": max(gaps, default=None), "reason": " ".join(sorted(reasons))},
        "methods": {row.method: row.status for row in found[0].methods},
        "cases": cases,
    }
    made["sha256"] = _digest(made)
    made["made"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return made


@keeps_modes
def check_certificate(
    given: Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> list[str]:
    """What is no longer so: derives a certificate again and names every difference; an empty list is a pass.

    Other versions of the libraries are no difference; errors may grow with them up to the limit of
    the certificate's precision.

    Args:
        given: A certificate, or the path of one.
        name: Where the model lies now; None: under the name in the certificate.
        device: Where it runs.
        trust_remote_code: Run the code that lies beside the model's weights.

    Returns:
        One sentence per difference.

    Raises:
        InputError: The file is no certificate, or was changed after it was made.

    Example:
        >>> cm.check_certificate(cm.certify("ctxmix/agreement"))
        []
    """
    old = read_certificate(given)
    about = old["model"]
    texts = [] if old["probes"] == ["noise, seed 0"] else old["probes"]
    new = certify(
        name or about["name"],
        texts=texts,
        revision=about["revision"] if name is None else None,
        dtype=about["dtype"],
        device=device,
        trust_remote_code=trust_remote_code,
    )
    found = []
    for key in ("class", "weights_sha256"):
        if new["model"][key] != about[key]:
            found.append(f"model {key}: {about[key]} in the certificate, {new['model'][key]} here.")
    for key in ("exact", "layers", "decomposed"):
        if new[key] != old[key]:
            found.append(f"{key}: {old[key]} in the certificate, {new[key]} here.")
    pairs = [
        ("reconstruction error", old["reconstruction_error"], new["reconstruction_error"]),
        ("gap of the ledger", old["ledger"]["gap"], new["ledger"]["gap"]),
    ]
    for what, was, now in pairs:
        if (was is None) != (now is None) or (now is not None and now > max(LIMIT, 10 * was)):
            found.append(f"{what}: {was} in the certificate, {now} here.")
    for what in ("methods", "cases"):
        for key, was in old[what].items():
            now = new[what].get(key)
            was, now = ((x or {}).get("passed") if what == "cases" else x for x in (was, now))
            if now != was:
                found.append(f"{what[:-1]} {key}: {was} in the certificate, {now} here.")
    return found


def read_certificate(given: Mapping[str, Any] | str | Path) -> Certificate:
    """A certificate that is one, as it was written."""
    if isinstance(given, Mapping):
        held, where = dict(given), "This"
    else:
        where = str(given)
        try:
            held = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"Could not read a certificate from {where}: {error}.") from error
    if not isinstance(held, dict) or held.get("schema") != SCHEMA:
        raise InputError(f"{where} is not a certificate of this library (schema {SCHEMA}).")
    _check_fields(where, held)
    try:
        fits = held["sha256"] == _digest(held)
    except (TypeError, ValueError):  # what JSON cannot hold was in no certificate
        fits = False
    if not fits:
        raise InputError(f"{where} was changed after it was made: its own digest does not fit.")
    return held


def _check_fields(where: str, held: Certificate) -> None:
    """Every field that `check_certificate` reads is there and of its type: a digest is easily made for any file."""
    missing = object()
    for path, types in FIELDS.items():
        value: Any = held
        for key in path.split("."):
            value = value.get(key, missing)
        if value is missing:
            raise InputError(
                f"{where} is not a whole certificate: it has no {path}, so make it again with ctxmix certify."
            )
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            _refuse_field(where, path, value)
    if not isinstance(getattr(torch, held["model"]["dtype"], None), torch.dtype):
        _refuse_field(where, "model.dtype", held["model"]["dtype"])
    if not held["probes"] or not all(isinstance(probe, str) for probe in held["probes"]):
        _refuse_field(where, "probes", held["probes"])
    for name, case in held["cases"].items():
        if not isinstance(case, dict) or not isinstance(case.get("passed"), bool):
            _refuse_field(where, f"cases.{name}", case)


def _refuse_field(where: str, path: str, value: Any) -> NoReturn:
    raise InputError(
        f"{where} is not a whole certificate: its {path} cannot be {value!r:.60}, so make it again with ctxmix certify."
    )


def _commit(name: str, model: Model) -> str | None:
    """The commit a model of the Hub was loaded from; none for a folder, or for a pointer to another repository."""
    own = getattr(model.config, "_name_or_path", None) == name
    return require_instrumentation(model).revision if own else None


def versions() -> dict[str, str]:
    return {
        "ctxmix_hf": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def state_digest(model: Model) -> str:
    """sha256 of every tensor with its name, in the order of the names: the same for any way of packing them."""
    made = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        made.update(tensor_bytes(tensor))
    return made.hexdigest()


def _files(name: str) -> dict[str, str]:
    """Of a model in a folder, as `sha256sum` gives them; what the Hub holds is named by its commit."""
    folder = Path(str(model_path(name)))
    if not folder.is_dir():
        return {}
    paths = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _digest(made: Mapping[str, Any]) -> str:
    """Of everything but the date and the digest itself."""
    kept = {key: value for key, value in made.items() if key not in ("sha256", "made")}
    whole = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(whole.encode()).hexdigest()


def _cases(model: Model, reader: Any, probes: list[Any], kind: str) -> dict[str, Any]:
    """What the contract promises of every model, on this one."""
    named = reader if kind == "text" else None
    probe = probes[0]
    plain = _first(call(model, read_batch(model, probe, named)))
    recorded = _first(call(model, read_batch(model, probe, named), output_decomposition=True))
    batch = read_batch(model, probe, named)
    uninstrument(model)
    bare = instrumentation_of(model) is None
    with torch.no_grad():
        without = _first(model(**batch.tensors))
    instrument(model, named)
    made: dict[str, Any] = {
        "same output while recording": {"passed": torch.equal(plain, recorded)},
        "nothing left behind": {"passed": bare and torch.equal(plain, without)},
    }
    if kind != "text":
        return made
    try:
        one = explain(model, probe, DEFAULT_METHOD, tokenizer=reader).input[0]
        long = f"{probe} {probe} {probe}"
        padded = explain(model, [probe, long], DEFAULT_METHOD, tokenizer=reader).input[0]
        size = one.shape[-1]
        gap = float((padded[:, :size, :size] - one).abs().max())
        sums = float((one.sum(dim=-1) - 1).abs().max())
        made["padding changes nothing"] = {"passed": gap <= LIMIT, "error": gap}
        made["rows are shares"] = {"passed": sums <= LIMIT, "error": sums}
        twice = [ledger(model, probe, tokenizer=reader).scores for _ in range(2)]
        made["the same ledger twice"] = {"passed": torch.equal(*twice)}
    except CtxmixError as error:  # the method or the ledger does not apply: the tables above say so
        made["not applicable"] = {"passed": True, "reason": str(error)}
    return made


def _first(outputs: Any) -> torch.Tensor:
    return next(value for value in outputs.values() if isinstance(value, torch.Tensor))
