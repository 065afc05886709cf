"""A model whose code lies in its own repository: refused in a sentence, and exact when the user says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from ctxmix_hf.auto import model_path

from .conftest import RunPython

CONFIGURATION = """
from transformers import PretrainedConfig

class OddConfig(PretrainedConfig):
    model_type = "odd_encoder"
    def __init__(self, vocab_size=7789, width=32, depth=2, pad_token_id=0, **more):
        super().__init__(pad_token_id=pad_token_id, **more)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, width, depth
        self.num_attention_heads = 4
"""
MODELLING = '''
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from .configuration_odd import OddConfig

class Mixer(nn.Module):
    """Named like nothing in transformers."""
    def __init__(self, d, heads):
        super().__init__()
        self.h, self.fused, self.back = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.fused(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.back(made.transpose(1, 2).reshape(b, t, d))

class Floor(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.mix, self.up, self.down = Mixer(d, heads), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.one, self.two = nn.LayerNorm(d), nn.LayerNorm(d)
    def forward(self, x, bias):
        x = x + self.mix(self.one(x), bias)
        return x + self.down(nn.functional.gelu(self.up(self.two(x))))

class OddModel(PreTrainedModel):
    config_class = OddConfig
    base_model_prefix = "odd"
    main_input_name = "input_ids"
    def __init__(self, config):
        super().__init__(config)
        d = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, d)
        self.floors = nn.ModuleList(Floor(d, config.num_attention_heads) for _ in range(config.num_hidden_layers))
        self.post_init()
    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.3)
    def get_input_embeddings(self):
        return self.words
    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones(x.shape[:2], device=x.device) if attention_mask is None else attention_mask
        bias = (1 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for floor in self.floors:
            x = floor(x, bias.expand(-1, 1, x.shape[1], -1))
        return BaseModelOutput(last_hidden_state=x)
'''
USE = """
    import ctxmix_hf as cm
    from ctxmix_hf.cli import main
    from ctxmix_hf.errors import InputError
    from ctxmix_hf import loading

    try:
        loading.load("{repo}")
        print("loaded")
    except InputError as error:
        print(error)
    model, tokenizer = loading.load("{repo}", trust_remote_code=True)
    print(type(model).__module__.partition(".")[0], type(model).__name__)
    found = cm.verify(model, ["The keys are here.", "A dog sleeps."], tokenizer)
    print(found.exact, max(layer.layer_error for layer in found.layers), found.ledger)
    m = cm.explain(model, "The keys to the cabinet are here.", "alti", tokenizer=tokenizer)
    print(m.depth, float((m.input.sum(-1) - 1).abs().max()))
    print(main(["doctor", "{repo}"]), main(["doctor", "{repo}", "--trust-remote-code", "--json"]))
"""
COMMANDS = """
    import contextlib, io
    from ctxmix_hf.cli import main
    from ctxmix_hf.assistant.server import LocalDesk
    from ctxmix_hf.errors import InputError

    evaluate = ["evaluate", "--suite", "mixing_own", "--model", "{repo}", "--limit", "2", "--methods", "alti"]
    compare = ["compare", "The keys are here.", "--model", "{repo}", "--other-model", "{repo}"]
    with open("rows.txt", "w") as file:
        file.write("The keys are here.\\nA dog sleeps.\\n")
    precompute = ["precompute", "--dataset", "rows.txt", "--model", "{repo}", "--out", "store"]
    tune = ["tune", "--masked-lm", "{repo}", "--out", "tuned"]
    flag = ["--trust-remote-code"]
    for asked in (
        evaluate, [*evaluate, *flag], compare, [*compare, *flag], precompute, [*precompute, *flag], tune
    ):
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main([*asked, *(() if asked[0] in ("compare", "precompute", "tune") else ("--out", "out"))])
        print(code, " ".join(said.getvalue().split()))
    for trusted in ((), ("{repo}",)):
        try:
            print(type(LocalDesk(trusted=trusted).model("{repo}")[0]).__name__)
        except InputError as error:
            print(error)
"""


@pytest.fixture
def repo(api: HfApi, repo_id: str, tmp_path: Path) -> str:
    """Code, a configuration that names it, a tokenizer, and no weights yet."""
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "configuration_odd.py").write_text(CONFIGURATION)
    (folder / "modeling_odd.py").write_text(MODELLING)
    config = {
        "model_type": "odd_encoder",
        "architectures": ["OddModel"],
        "auto_map": {
            "AutoConfig": "configuration_odd.OddConfig",
            "AutoModel": "modeling_odd.OddModel",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    box = Path(model_path("ctxmix/agreement"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((box / name).read_bytes())
    api.create_repo(repo_id)
    api.upload_folder(repo_id=repo_id, folder_path=folder)
    return repo_id


def test_remote_code_runs_when_the_user_says_so(
    repo: str, api: HfApi, run_python: RunPython, tmp_path: Path
) -> None:
    made = f"""
        from transformers import AutoConfig, AutoModel
        import torch
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained("{repo}", trust_remote_code=True)
        AutoModel.from_config(config, trust_remote_code=True).save_pretrained("weights")
    """
    run_python(made)
    api.upload_file(
        repo_id=repo,
        path_or_fileobj=tmp_path / "weights" / "model.safetensors",
        path_in_repo="model.safetensors",
    )
    lines = run_python(USE.format(repo=repo)).splitlines()
    assert "brings code of its own, which runs only if you say so" in lines[0]
    assert lines[1] == "transformers_modules OddModel"  # the advice
    exact, error, gap = lines[2].split()
    assert exact == "True" and float(error) < 1e-5 and float(gap) < 1e-5
    depth, off = lines[3].split()
    assert depth == "2" and float(off) < 1e-5
    assert lines[-1] == "2 0"
    said = run_python(COMMANDS.format(repo=repo)).splitlines()
    advice = "brings code of its own, which runs only if you say so: read it, then pass trust_remote_code=True"
    for refused, done in zip(said[0:6:2], said[1:6:2], strict=True):
        assert refused.startswith("2 ") and advice in refused
        assert done.startswith("0")  # the advice
    assert said[6] == (
        f"2 ctxmix: The model {repo!r} brings code of its own, which tuning never runs: choose a model whose "
        "class is one of transformers."
    )
    assert advice in said[7] and said[8] == "OddModel"
