"""Every function of the page as an endpoint, through gradio_client."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM

import ctxmix_hf as cm
from ctxmix_hf.demo import pictures
from ctxmix_hf.demo.api import ENDPOINTS
from tests.demo.conftest import ARTIFACTS, KEYS, Server

MODEL = "ctxmix/agreement"


def refused(client: Any, *args: Any, api_name: str) -> str:
    with pytest.raises(Exception) as caught:  # the client's own error class moved between versions
        client.predict(*args, api_name=api_name)
    return str(caught.value)


def test_every_endpoint_is_named_typed_and_documented(client: Any) -> None:
    info = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(info) == {f"/{name}" for name in ENDPOINTS}
    assert all(function.__doc__ for function in ENDPOINTS.values())
    assert [p["parameter_name"] for p in info["/map"]["parameters"]] == [
        "model",
        "method",
        "text",
        "pair",
    ]


@pytest.mark.parametrize(
    ("endpoint", "wrong", "said"),
    [
        (
            "attribution",
            [MODEL, "alti", KEYS, "x"],
            "target of /attribution must be a whole number",
        ),
        ("attribution", [MODEL, "alti", KEYS, None], "must be a whole number, got None"),
        ("attribution", [MODEL, "alti", KEYS, 0, -1, "yes"], "words of /attribution must be true"),
        ("compare", [MODEL, "alti", KEYS, MODEL, "alti", KEYS, "x"], "must be a whole number"),
        ("agreement", [MODEL, KEYS, []], "must be a whole number"),
        ("rank", [MODEL, KEYS, 5], "documents of /rank must be a list of texts"),
        ("rank", [MODEL, KEYS, [1, 2]], "documents of /rank must be a list of texts"),
        ("image_map", [5, MODEL], "picture of /image_map must be a text"),
        ("browse", [5], "store of /browse must be a text"),
        ("ledger", [MODEL, KEYS, "", 5], "word of /ledger must be a text"),
        ("snippet", [MODEL, "alti", 5], "text of /snippet must be a text"),
    ],
)
def test_wrong_types_get_one_sentence(endpoint: str, wrong: list[Any], said: str) -> None:
    """Sent as they are: gradio's own client would turn some of them into what is asked for."""
    from gradio import Error

    from ctxmix_hf.demo.api import gated

    with pytest.raises(Error) as caught:
        gated(ENDPOINTS[endpoint], endpoint)(*wrong)
    assert said in caught.value.message and "\n" not in caught.value.message


def test_a_map_with_options_of_its_method(client: Any, box: Any) -> None:
    made = client.predict(MODEL, "value_zeroing", KEYS, "distance=euclidean", api_name="/map_with")
    expected = cm.explain(
        box[0], KEYS, cm.method("value_zeroing", distance="euclidean"), tokenizer=box[1]
    )
    found = cm.ContextMixingMap.from_json(json.dumps(made))
    assert torch.allclose(found.input, expected.input, atol=1e-6)
    assert "has no option" in refused(
        client, MODEL, "value_zeroing", KEYS, "distant=1", api_name="/map_with"
    )


def test_methods_and_models_are_the_registry(client: Any) -> None:
    assert client.predict(api_name="/models") == ["ctxmix/agreement", "ctxmix/sentiment"]
    assert [row["name"] for row in client.predict(api_name="/methods")] == [
        row.name for row in cm.list_methods()
    ]


def test_the_map_is_the_librarys(client: Any, box: Any) -> None:
    text = "The sisters of the old waiter [MASK] here."
    made = cm.ContextMixingMap.from_json(
        json.dumps(client.predict(MODEL, "alti", text, api_name="/map"))
    )
    wanted = cm.explain(box[0], text, "alti", tokenizer=box[1])
    assert torch.allclose(made.layers, wanted.layers, atol=1e-5)
    assert made.tokens == wanted.tokens


def test_a_cached_example_equals_a_fresh_one(client: Any, box: Any) -> None:
    made = cm.ContextMixingMap.from_json(
        json.dumps(client.predict(MODEL, "value_zeroing", KEYS, api_name="/map"))
    )
    assert torch.allclose(
        made.layers, cm.explain(box[0], KEYS, "value_zeroing", tokenizer=box[1]).layers, atol=1e-4
    )


def test_a_pair_is_the_tokenizers_second_segment(client: Any, box: Any) -> None:
    first, second = "The girls are old.", "The boy [MASK] tired."
    encoding = box[1](first, second, return_tensors="pt")
    assert encoding["token_type_ids"].unique().tolist() == [0, 1]
    answer = client.predict(MODEL, "attention", first, second, api_name="/map")
    made = cm.ContextMixingMap.from_json(json.dumps(answer))
    untouched = BertForMaskedLM.from_pretrained(
        box[0].config._name_or_path, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        plain = untouched(**encoding, output_attentions=True)
        glued = (
            untouched(encoding["input_ids"], output_attentions=True).attentions[0][0].mean(dim=0)
        )
    assert torch.allclose(
        made.layers[0, 0], plain.attentions[0][0].mean(dim=0).to(made.layers.dtype), atol=1e-5
    )
    assert (
        glued - made.layers[0, 0]
    ).abs().max() > 1e-3  # the same ids in one segment are another input
    assert answer["meta"]["pair"] == [first, second]
    assert made.words().tokens[0].pieces[7:9] == ("The", "boy")
    wanted = (
        cm.explain(box[0], (first, second), "alti", tokenizer=box[1]).words().attribution("[MASK]")
    )
    assert client.predict(MODEL, "alti", first, 9, -1, True, second, api_name="/attribution")[
        "scores"
    ] == pytest.approx(wanted.scores[0].tolist(), abs=1e-4)
    place = int((encoding["input_ids"][0] == box[1].mask_token_id).nonzero())
    name, value = client.predict(MODEL, first, second, api_name="/predictions")["rows"][0][0]
    top = plain.logits[0, place].softmax(dim=-1).max(dim=-1)
    assert (name, value) == (
        box[1].convert_ids_to_tokens(int(top.indices)),
        pytest.approx(float(top.values), abs=1e-4),
    )
    blank = client.predict(MODEL, first, "blank_out", second, api_name="/scores")["scores"]
    assert blank == pytest.approx(
        cm.attribute(box[0], (first, second), "blank_out", tokenizer=box[1]).scores[0].tolist(),
        abs=1e-4,
    )
    assert client.predict(MODEL, first, place, second, api_name="/agreement")["target"] == "[MASK]"
    gap = client.predict(
        MODEL, "alti", first, MODEL, "alti", "The girl is old.", 0, second, api_name="/compare"
    )
    assert "girls/girl" in gap["tokens"] and "[MASK]" in gap["tokens"]
    assert f"({first!r}, {second!r})" in client.predict(
        MODEL, "alti", first, second, api_name="/snippet"
    )


def test_attribution_predictions_and_scores(client: Any, box: Any) -> None:
    row = client.predict(MODEL, "alti", KEYS, 6, api_name="/attribution")
    wanted = cm.explain(box[0], KEYS, "alti", tokenizer=box[1]).words().attribution("[MASK]")
    assert row["target"] == "[MASK]"
    assert row["scores"] == pytest.approx(wanted.scores[0].tolist(), abs=1e-4)
    words = client.predict(MODEL, KEYS, api_name="/predictions")["rows"][0]
    assert words[0][0] in ("are", "were")
    classes = client.predict("ctxmix/sentiment", "The film is not good.", api_name="/predictions")[
        "rows"
    ][0]
    assert sum(value for _, value in classes) == pytest.approx(1.0, abs=1e-5)
    blank = client.predict(MODEL, KEYS, "blank_out", api_name="/scores")
    assert blank["scores"] == pytest.approx(
        cm.attribute(box[0], KEYS, "blank_out", tokenizer=box[1]).scores[0].tolist(), abs=1e-4
    )


def test_comparison_agreement_and_similarity(client: Any, box: Any) -> None:
    other = KEYS.replace("books", "book")
    made = client.predict(MODEL, "alti", KEYS, MODEL, "alti", other, 6, api_name="/compare")
    maps = [cm.explain(box[0], text, "alti", tokenizer=box[1]).words() for text in (KEYS, other)]
    assert torch.allclose(torch.tensor(made["difference"]), (maps[1] - maps[0]).input, atol=1e-4)
    assert made["target"] == "[MASK]"
    assert made["rank_correlation"] == pytest.approx(
        maps[0].attribution("[MASK]").rank_correlation(maps[1].attribution("[MASK]")), abs=1e-3
    )
    table = client.predict(MODEL, KEYS, 6, api_name="/agreement")
    assert all(
        table["correlation"][k][k] == pytest.approx(1.0) for k in range(len(table["methods"]))
    )
    long = client.predict(MODEL, f"{KEYS} " * 8, 6, api_name="/agreement")
    assert "hta" in long["left_out"] and "hta" not in long["methods"]
    alike = client.predict(MODEL, KEYS, other, api_name="/similarity")
    exact = cm.similarity(box[0], KEYS, other, tokenizer=box[1])
    assert alike["cosine"] == pytest.approx(exact.cosine, abs=1e-4)
    assert torch.allclose(torch.tensor(alike["pairs"]), exact.pairs.float(), atol=1e-4)
    shared = client.predict(MODEL, KEYS, other, "alti", api_name="/similarity")
    assert sum(shared["a"]["scores"]) == pytest.approx(shared["cosine"], abs=1e-4)
    texts = ["The film is bad.", KEYS]
    assert client.predict(MODEL, other, texts, api_name="/rank")["order"] == [1, 0]
    why = client.predict(MODEL, KEYS, "", "are", "is", api_name="/ledger")
    made = cm.ledger(box[0], KEYS, "are", foil="is", tokenizer=box[1])
    assert why["value"] == pytest.approx(float(made.value[0]), abs=1e-3)
    assert sum(why["scores"]) + why["biases"] == pytest.approx(why["value"], abs=1e-3)


def test_files_and_code(client: Any) -> None:
    assert client.predict(MODEL, "alti", KEYS, api_name="/html").startswith("<!doctype html>")
    assert (
        client.predict(MODEL, "alti", KEYS, api_name="/csv")
        == cm.ContextMixingMap.from_json(
            json.dumps(client.predict(MODEL, "alti", KEYS, api_name="/map"))
        ).to_csv()
    )
    code = client.predict(MODEL, "attention", KEYS, api_name="/snippet")
    scope: dict[str, Any] = {}
    exec(code.split("m.show()")[0], scope)
    assert scope["m"].method == "attention"


def test_pictures(client: Any, server: Server) -> None:
    named = client.predict("shapes", server.vision, "attention", api_name="/image_map")
    file = io.BytesIO()
    pictures.example("shapes").save(file, format="PNG")
    sent = client.predict(
        "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        server.vision,
        "attention",
        api_name="/image_map",
    )
    assert named["layers"] == sent["layers"]
    assert "could not be read" in refused(
        client, "data:image/png;base64,AAAA", server.vision, api_name="/image_map"
    )
    assert "no example picture" in refused(client, "nothing", server.vision, api_name="/image_map")
    assert "does not read pictures" in refused(client, "shapes", MODEL, api_name="/image_map")


def test_precomputed_maps_open_without_a_model(client: Any, server: Server, box: Any) -> None:
    assert [row["id"] for row in client.predict(server.store, api_name="/browse")] == [
        "girls",
        "boys",
        "teacher",
    ]
    assert [row["id"] for row in client.predict(server.store, "test", "", api_name="/browse")] == [
        "teacher"
    ]
    assert [
        row["id"] for row in client.predict(server.store, "all", "TIRED", api_name="/browse")
    ] == ["boys"]
    made = cm.ContextMixingMap.from_json(
        json.dumps(client.predict(server.store, "boys", "alti", api_name="/stored_map"))
    )
    assert torch.allclose(
        made.layers,
        cm.explain(box[0], "The boys [MASK] tired.", "alti", tokenizer=box[1]).layers,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((MODEL, "alti", "  "), "empty"),
        ((MODEL, "alti", "x" * 30_000), "30,000 characters"),
        ((MODEL, "alti", "a b c d e f g " * 40), "tokens; with this model"),
        ((MODEL, "alty", KEYS), "Did you mean 'alti'"),
        ((MODEL, "hta", "The boys that the teacher likes [MASK] here. " * 12), "would take about"),
        (("nobody/nothing", "alti", KEYS), "nobody/nothing is not on this server"),
        (("ctxmix/nothing", "alti", KEYS), "bundled model"),
        (("/etc", "alti", KEYS), "has no config.json"),
        (("", "alti", KEYS), "Choose a model"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    client: Any, args: tuple[str, ...], said: str
) -> None:
    assert said in refused(client, *args, api_name="/map")


def test_other_requests_are_refused_too(client: Any, server: Server) -> None:
    assert "marks no second sentence" in refused(
        client, server.plain, "alti", "the boys", "they sleep", api_name="/map"
    )
    assert client.predict(server.plain, "alti", "the boys sleep", api_name="/map")["tokens"][0][
        "pieces"
    ] == ["the", "boys", "sleep"]
    assert "second sentence has 10,000" in refused(
        client, MODEL, "alti", KEYS, "x" * 10_000, api_name="/map"
    )
    assert "no target 99" in refused(client, MODEL, "alti", KEYS, 99, api_name="/attribution")
    assert "no target -99" in refused(
        client, MODEL, "alti", KEYS, MODEL, "alti", KEYS, -99, api_name="/compare"
    )
    assert "cannot be decomposed" in refused(
        client, server.unsupported, "alti", KEYS, api_name="/map"
    )
    assert "No example" in refused(client, server.store, "nobody", "alti", api_name="/stored_map")


@pytest.mark.parametrize(
    "text",
    [
        "😀 👩‍👩‍👧 are happy",
        "שלום עולם [MASK]",
        "a\x00b\x07 c",
        "<script>alert(1)</script>",
        "ﷺ\u202e x",
        "\ud7ff",
    ],
)
def test_any_text_gives_a_map_or_a_reason(client: Any, text: str) -> None:
    made = client.predict(MODEL, "attention", text, api_name="/map")
    assert len(made["layers"][0]) == 6


def memory(pid: int) -> float:
    """Resident megabytes."""
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_eight_users_at_once(server: Server, seconds: int) -> None:
    """No error, nobody sees another's text, and no memory beyond what the first minute of any allocator takes."""
    from gradio_client import Client

    clients = [Client(server.url, verbose=False) for _ in range(8)]
    clients[0].predict(MODEL, "alti", "The warm boys [MASK].", api_name="/map")
    before, until, wrong, done = memory(server.pid), time.monotonic() + seconds, [], []
    halfway: list[float] = []

    def user(number: int) -> None:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            text = f"The {'very ' * (turn % 5)}boys number {number} of {turn} [MASK] tired."
            try:
                made = clients[number].predict(
                    MODEL, ("alti", "value_zeroing", "attention")[turn % 3], text, api_name="/map"
                )
                (done if made["tokens"][0]["text"] == text else wrong).append(text)
            except Exception as error:  # counted, so that one thread's failure fails the test
                wrong.append(f"{text}: {error}")
            if not halfway and time.monotonic() > until - seconds / 2:
                halfway.append(memory(server.pid))

    threads = [threading.Thread(target=user, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = memory(server.pid)
    with (ARTIFACTS / "times.txt").open("a") as file:
        file.write(
            f"8 users for {seconds} s: {len(done)} maps, {len(wrong)} errors, {before:.0f} -> "
            f"{halfway[0]:.0f} -> {after:.0f} MB\n"
        )
    assert not wrong
    assert len(done) >= 8
    assert after - before < 200
    assert after - halfway[0] < 60


def test_endpoints_keep_their_inputs_and_those_with_more_agree(client: Any) -> None:
    """A caller who sends what it always sent is served; what is new has an endpoint of its own."""
    plain = client.predict(MODEL, KEYS, "grad_dot_input", api_name="/scores")
    same = client.predict(MODEL, KEYS, "grad_dot_input", "", "", api_name="/scores_with")
    assert plain == same
    against = client.predict(MODEL, KEYS, "grad_dot_input", "are", "is", api_name="/scores_with")
    assert against["scores"] != plain["scores"] and "is" in against["target"]
    sides = (MODEL, "alti", KEYS, MODEL, "alti", KEYS)
    assert not any(map(any, client.predict(*sides, api_name="/compare")["difference"][-1]))
    other = client.predict(*sides, "", "norm=2", api_name="/compare_with")
    assert any(map(any, other["difference"][-1]))
