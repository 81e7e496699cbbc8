"""Endpoints that need no engine."""

from __future__ import annotations

import pytest

from pykv.server import create_app
from tests.server.fakes import Client, ScriptedEngine, fake_runtime


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(client: Client, path: str) -> None:
    assert client.get(path).json() == {"status": "ok"}


def test_models(client: Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json() == listed["data"][0]
    assert listed["data"][0]["meta"]["n_ctx"] == 200


def test_alias(engine: ScriptedEngine) -> None:
    client = Client(create_app(fake_runtime(), engine=engine, alias="house/model"))
    assert client.get("/v1/models").json()["data"][0]["id"] == "house/model"
    for name in ("house/model", "tiny", "tiny-model", "tiny-model.gguf"):
        reply = client.post("/v1/completions", {"prompt": "a", "model": name})
        assert reply.json()["model"] == "house/model"
        assert client.get(f"/v1/models/{name}").status_code == 200


def test_props(client: Client) -> None:
    props = client.get("/props").json()
    assert props["total_slots"] == 16
    assert props["default_generation_settings"]["n_ctx"] == 200
    assert props["default_generation_settings"]["params"]["top_k"] == 40
    assert "/" not in props["model_alias"]
    assert props["model_path"] == "tiny-model.gguf"
    assert props["chat_template"] == "{{ messages }}"
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    full, window = props["kv_pools"]
    assert full["window"] is None and window["window"] == ["standard", 16]
    assert full["cells_free"] == 90 and window["cells_resume"] == 5
    assert props["states"] == {"slots": 9, "slots_used": 4, "slots_resume": 2}
    assert props["resume_points"] == {"count": 2, "bytes": 640, "bytes_budget": 1000}


def test_slots(client: Client) -> None:
    busy, *idle = client.get("/slots").json()
    assert busy["is_processing"] and busy["id_task"] == 7
    assert (busy["n_prompt_tokens"], busy["n_prompt_tokens_cache"]) == (20, 15)
    assert busy["next_token"][0]["n_decoded"] == 3
    assert [slot["id"] for slot in idle] == list(range(1, 16))
    assert not any(slot["is_processing"] for slot in idle)
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200


def test_no_slot_is_free(engine: ScriptedEngine) -> None:
    runtime = fake_runtime()
    snapshot = runtime.engine.snapshot()
    snapshot["limits"]["parallel"] = 1
    runtime.engine.snapshot = lambda: snapshot
    client = Client(create_app(runtime, engine=engine))
    assert len(client.get("/slots").json()) == 1
    reply = client.get("/slots?fail_on_no_slot=1")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_slot")


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_actions_on_slots_are_refused(client: Client, action: str) -> None:
    for slot in (0, 15):
        reply = client.post(f"/slots/{slot}?action={action}", {"filename": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (501, "unsupported")


@pytest.mark.parametrize(
    "slot", ["-1", "16", "99", "4294967295", "9" * 5000, "00", "+1", "x", "%D9%A1"]
)
def test_slots_that_do_not_exist(client: Client, slot: str) -> None:
    """C30: none of them stands for another one."""
    reply = client.post(f"/slots/{slot}?action=erase", {})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert "lists 0 to 15" in reply.json()["error"]["message"]


def test_tokenize(client: Client) -> None:
    assert client.post("/tokenize", {"content": "hé"}).json() == {"tokens": [104, 195, 169]}
    assert client.post("/tokenize", {"content": ""}).json() == {"tokens": []}


def test_tokenize_with_pieces(client: Client) -> None:
    reply = client.post("/tokenize", {"content": "hé", "with_pieces": True}).json()
    assert reply == {
        "tokens": [
            {"id": 104, "piece": "h"},
            {"id": 195, "piece": [195]},
            {"id": 169, "piece": [169]},
        ]
    }


def test_detokenize(client: Client) -> None:
    assert client.post("/detokenize", {"tokens": [104, 195, 169]}).json() == {"content": "hé"}
    assert client.post("/detokenize", {"tokens": []}).json() == {"content": ""}


def test_apply_template(client: Client) -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    reply = client.post("/apply-template", {"messages": messages, "add_generation_prompt": True})
    assert reply.json() == {"prompt": "[system]be kind[user]a\nb[assistant]"}
