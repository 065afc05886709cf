"""What neighbouring tools need for the same sentence, side by side in one run, in multiples of a plain forward pass.

    python benchmarks/peers.py                   # makes a venv per peer under .venv-peers/; one that cannot be made is skipped
    python benchmarks/peers.py --only captum     # and ours

MiniLM size (6 layers, 384, 12 heads), 64 tokens, random weights, one thread, CPU seconds (best of
three). A peer runs in a process and venv of its own with the versions it needs, so each is divided
by a forward pass of its own process.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results" / "peers.json"
VENVS = HERE.parents[1] / ".venv-peers"
TOKENS, LAYERS, WIDTH, HEADS = 64, 6, 384, 12


@dataclass(frozen=True)
class Peer:
    """A tool, what it is asked for, and what its venv needs."""

    asked: str
    requirements: tuple[str, ...]


OURS = {
    "ctxmix_hf value_zeroing": "all rows, all layers",
    "ctxmix_hf alti": "all rows, all layers, rolled out",
    "ctxmix_hf norm family": "norm, norm_res, norm_resln, norm_enc, globenc: all rows, all layers",
    "ctxmix_hf integrated_gradients": "50 steps, one class",
    "ctxmix_hf integrated_gradients, gauss": "10 Gauss-Legendre steps, one class",
    "ctxmix_hf attention_rollout": "all rows, all layers",
}
PEERS = {
    "captum integrated_gradients": Peer("50 steps, one class", ("captum", "transformers==5.22.2")),
    "nnsight value_zeroing": Peer(
        "all rows, all layers: a loop over tokens and layers", ("nnsight", "transformers==5.22.2")
    ),
    "inseq value_zeroing": Peer(
        "four rows, all layers, a Llama of the same size (no encoders)",
        ("inseq", "transformers==4.53.3", "tokenizers"),
    ),
    "ferret six explainers": Peer("one sentence, one class", ("ferret-xai",)),
}
UNAVAILABLE = {"DecompX": "not on PyPI; its code needs transformers 4.38 or older"}


# ---- in a peer's own process --------------------------------------------------------------------------------------
def encoder(head: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        attn_implementation="eager",
    )
    model = getattr(transformers, head)(config).eval()
    ids = torch.randint(1000, 20_000, (1, TOKENS))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def plain(model: Any, inputs: dict[str, Any]) -> float:
    import torch

    def run() -> None:
        with torch.no_grad():
            model(**inputs)

    return cpu_seconds(run, 9)


def captum_integrated_gradients() -> dict[str, float]:
    from captum.attr import LayerIntegratedGradients

    model, inputs = encoder("BertForSequenceClassification")
    method = LayerIntegratedGradients(
        lambda ids, mask: model(ids, mask).logits, model.bert.embeddings
    )
    baseline = inputs["input_ids"] * 0

    def run() -> None:
        method.attribute(
            inputs["input_ids"],
            baseline,
            target=1,
            additional_forward_args=(inputs["attention_mask"],),
            n_steps=50,
        )

    return {"forward": plain(model, inputs), "seconds": cpu_seconds(run)}


def nnsight_value_zeroing() -> dict[str, float]:
    import torch
    from nnsight import NNsight

    model, inputs = encoder("BertModel")
    wrapped = NNsight(model)

    def run() -> None:
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
            for number in range(LAYERS):
                layer = wrapped.encoder.layer[number]
                for token in range(TOKENS):
                    with wrapped.trace(**inputs):
                        layer.attention.self.value.output[:, token] = 0
                        out = layer.output.save()
                    out = out[0] if isinstance(out, tuple) else out
                    torch.cosine_similarity(out, hidden[number + 1], dim=-1)

    return {"forward": plain(model, inputs), "seconds": cpu_seconds(run, 1)}


def inseq_value_zeroing() -> dict[str, float]:
    import tempfile

    import inseq
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="eager",
    )
    vocabulary = {f"w{i}": i for i in range(1000)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w3", bos_token="w1", eos_token="w2", pad_token="w0"
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model = inseq.load_model(
            folder, "value_zeroing", model_kwargs={"attn_implementation": "eager"}
        )
    text = " ".join(f"w{10 + i}" for i in range(TOKENS - 4))
    whole = text + " " + " ".join(f"w{500 + i}" for i in range(4))
    ids = tokenizer(whole, return_tensors="pt")
    inputs = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}

    def run() -> None:
        model.attribute(text, whole, show_progress=False, pretty_progress=False)

    return {"forward": plain(model.model, inputs), "seconds": cpu_seconds(run, 1)}


def ferret_six_explainers() -> dict[str, float]:
    from ferret import Benchmark

    raise RuntimeError(
        f"imported ({Benchmark.__name__}), but its explainers want a tokenizer from the Hub"
    )


def ctxmix() -> dict[str, dict[str, float]]:
    import torch

    import ctxmix_hf as cm

    model, inputs = encoder("BertForSequenceClassification")
    forward = plain(model, inputs)
    cm.instrument(model)

    def maps(*names: str) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                for made in model(
                    **inputs, output_context_mixing=list(names)
                ).context_mixing.values():
                    made.input  # noqa: B018

        return run

    runs: dict[str, Callable[[], object]] = {
        "ctxmix_hf value_zeroing": maps("value_zeroing"),
        "ctxmix_hf alti": maps("alti"),
        "ctxmix_hf norm family": maps("norm", "norm_res", "norm_resln", "norm_enc", "globenc"),
        "ctxmix_hf integrated_gradients": lambda: cm.attribute(
            model,
            inputs,
            "integrated_gradients",
            class_index=1,
            steps=50,
            rule="riemann",
            mask_token_id=103,
        ),
        "ctxmix_hf integrated_gradients, gauss": lambda: cm.attribute(
            model,
            inputs,
            "integrated_gradients",
            class_index=1,
            steps=10,
            rule="gauss_legendre",
            mask_token_id=103,
        ),
        "ctxmix_hf attention_rollout": maps("attention_rollout"),
    }
    return {name: {"forward": forward, "seconds": cpu_seconds(run)} for name, run in runs.items()}


CHILDREN: dict[str, Callable[[], Any]] = {
    "ours": ctxmix,
    "captum integrated_gradients": captum_integrated_gradients,
    "nnsight value_zeroing": nnsight_value_zeroing,
    "inseq value_zeroing": inseq_value_zeroing,
    "ferret six explainers": ferret_six_explainers,
}


# ---- here -----------------------------------------------------------------------------------------------------------
def python_of(name: str, peer: Peer) -> Path:
    """The peer's interpreter; its venv is made if it is not there."""
    venv = VENVS / name.split()[0]
    python = venv / "bin" / "python"
    if not (venv / ".ready").is_file():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "torch==2.13.0", *peer.requirements]
        done = subprocess.run(install, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(
                f"cannot be installed: {(done.stderr.strip().splitlines() or ['pip failed'])[-1][:200]}"
            )
        (venv / ".ready").touch()
    return python


def asked_of(python: str | Path, name: str) -> Any:
    done = subprocess.run(
        [str(python), str(HERE), "--child", name], capture_output=True, text=True, timeout=1200
    )
    if done.returncode:
        raise RuntimeError(
            f"fails: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(name: str, asked: str, found: dict[str, float]) -> dict[str, Any]:
    made = {
        "tool": name,
        "asked": asked,
        "forward_seconds": round(found["forward"], 4),
        "cpu_seconds": round(found["seconds"], 3),
        "forwards": round(found["seconds"] / found["forward"], 1),
    }
    print(
        f"{name:34} {made['cpu_seconds']:9.3f} s {made['forwards']:9.1f} forwards   {asked}",
        flush=True,
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="the first word of a peer's name")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child]()))
        return
    rows = [
        row(name, OURS[name], found) for name, found in asked_of(sys.executable, "ours").items()
    ]
    skipped = dict(UNAVAILABLE)
    for name, peer in PEERS.items():
        if arguments.only and name.split()[0] not in arguments.only:
            continue
        try:
            rows.append(row(name, peer.asked, asked_of(python_of(name, peer), name)))
        except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as reason:
            skipped[name] = str(reason)
            print(f"{name:34} skipped: {reason}", flush=True)
    RESULTS.write_text(
        json.dumps({"rows": rows, "skipped": skipped}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
