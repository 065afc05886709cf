"""The real server in a process of its own, offline, and Debian's Chromium looking at it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

import pytest

pytest.importorskip("gradio", reason="the extra [demo] is not installed")

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "tests" / "artifacts"
KEYS = "The books about the boy [MASK] old."  # the opening example: plural, then a singular


@dataclass(frozen=True)
class Server:
    url: str
    pid: int
    ready: float  # when it first answered
    store: str
    vision: str
    slow_vision: str
    plain: str
    unsupported: str
    long: str


@pytest.fixture(scope="session")
def box() -> Any:
    import ctxmix_hf as cm

    return cm.load_default()


@pytest.fixture(scope="session")
def keys(box: Any) -> Any:
    """The map the page opens with."""
    import ctxmix_hf as cm

    return cm.explain(box[0], KEYS, "alti", tokenizer=box[1])


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, box: Any) -> str:
    """A small MapStore of two splits."""
    import ctxmix_hf as cm

    path = tmp_path_factory.mktemp("store") / "maps"
    with cm.MapStore.create(
        path, model=box[0], tokenizer=box[1], methods=["alti", "attention"]
    ) as made:
        made.add(
            ["girls", "boys"],
            ["Many girls insulted [MASK].", "The boys [MASK] tired."],
            split="train",
        )
        made.add(["teacher"], ["The teacher [MASK] old."], split="test")
    return str(path)


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random ViT with its image processor."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vit")
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def slow_vision(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As small, but of 197 patches: hta would take minutes."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    path = tmp_path_factory.mktemp("slow-vit")
    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64
    )
    ViTForImageClassification(config).save_pretrained(path)
    ViTImageProcessor().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random encoder whose tokenizer puts nothing between two texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("plain")
    words = {
        word: k
        for k, word in enumerate(
            ["[UNK]", "[PAD]", "the", "boys", "are", "tired", ".", "they", "sleep"]
        )
    }
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(path)
    config = BertConfig(
        vocab_size=9,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertModel(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory, box: Any) -> str:
    """A tiny random encoder that reads 2,600 tokens."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("long")
    config = BertConfig(
        vocab_size=len(box[1]),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=2600,
    )
    BertForMaskedLM(config).save_pretrained(path)
    box[1].save_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path, model_max_length=2600)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def unsupported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without attention."""
    from transformers import MambaConfig, MambaModel

    path = tmp_path_factory.mktemp("mamba")
    MambaModel(
        MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, state_size=4)
    ).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def server(
    store: str, vision: str, slow_vision: str, plain: str, unsupported: str, long: str
) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "CTXMIX_DEMO_STORE": store,
    }
    ARTIFACTS.mkdir(exist_ok=True)
    with (ARTIFACTS / "server.log").open("w") as log:
        code = f"from ctxmix_hf import demo; demo.launch({port}, quiet=True)"
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/"
    try:
        ready = wait_for(url, process)
        from gradio_client import Client

        # its workers too: on a busy machine they take longer than a browser test waits
        Client(url, verbose=False).predict(
            "ctxmix/agreement", "alti", "The server [MASK] ready.", api_name="/map"
        )
        yield Server(url, process.pid, ready, store, vision, slow_vision, plain, unsupported, long)
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> float:
    for _ in range(1800):
        if process.poll() is not None:
            pytest.fail(f"the server ended: {(ARTIFACTS / 'server.log').read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return time.monotonic()
        except OSError:
            time.sleep(0.1)
    pytest.fail("the server did not start within three minutes")


@pytest.fixture(scope="session")
def client(server: Server) -> Any:
    from gradio_client import Client

    return Client(server.url, verbose=False)


@dataclass
class Visit:
    """A page with everything that went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def widget(self, name: str = "main") -> str:
        return f"#map-{name} .cmx"

    def wait(self, condition: str, name: str = "main", timeout: float = 20000) -> None:
        """Until `w` (the widget) fulfils a condition in JavaScript."""
        self.page.wait_for_function(
            f"(() => {{ const e = document.querySelector('{self.widget(name)}'); "
            f"const w = e && e.ctxmix; return w && ({condition}); }})()",
            timeout=timeout,
        )

    def js(self, expression: str, name: str = "main") -> Any:
        return self.page.evaluate(
            f"(() => {{ const w = document.querySelector('{self.widget(name)}').ctxmix; return {expression}; }})()"
        )

    def ask(self, text: str) -> None:
        self.page.fill("#text textarea", text)
        self.page.press("#text textarea", "Enter")

    def query(self) -> dict[str, str]:
        """What stands in the address."""
        return dict(parse_qsl(urlparse(self.page.url).query))

    def shot(self, name: str) -> Path:
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Any]:
    """Opens pages; afterwards none may have failed or asked anything outside."""
    yield from visits(browser, server)


@pytest.fixture(scope="module")
def opened(browser: Any, server: Server) -> Iterator[Any]:
    """One page for a whole file, at its first map."""
    for open_page in visits(browser, server):
        yield open_page()


@pytest.fixture(scope="module")
def typing(browser: Any, server: Server) -> Iterator[Any]:
    """Another one, for what a person types: each test says which text it wants."""
    for open_page in visits(browser, server):
        yield open_page()


@pytest.fixture
def desk(opened: Visit) -> Visit:
    """That page with the widget as it started: opening a page costs two seconds, this nothing."""
    opened.js(
        "(w.pins = [Number(w.p.pin)], w.hover = null, w.unfold(true), "
        "w.set({...ctxmix.DEFAULTS, layer: w.model.depth}))"
    )
    return opened


def visits(browser: Any, server: Server) -> Iterator[Any]:
    opened: list[Visit] = []

    def open_page(
        query: str = "", width: int = 1440, scheme: str = "light", wait: bool = True
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(20000)
        made = Visit(context.new_page())
        made.page.on("pageerror", lambda error: made.errors.append(str(error)))
        made.page.on(
            "console", lambda line: made.errors.append(line.text) if line.type == "error" else None
        )
        made.page.on(
            "request",
            lambda r: (
                made.outside.append(r.url)
                if not r.url.startswith((server.url, "data:", "blob:"))
                else None
            ),
        )
        made.page.goto(server.url + query)
        opened.append(made)
        if wait:
            made.wait("w.root.dataset.ready")
        return made

    yield open_page
    for made in opened:
        made.page.context.close()
        assert made.outside == []
        assert made.errors == []
