"""Uses a server of two models, smollm2 and gemma3, as programs do, with the clients of OpenAI and LangChain: URL."""

import base64
import json
import struct
import sys
import threading
import urllib.request

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

(url,) = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=240)
sea, waves, tax = "The sea is calm today.", "Waves are small on the ocean.", "The tax form asks for an address."


def near(a, b, most=1e-5):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < most


def product(a, b):
    return sum(x * y for x, y in zip(a, b))


# The two by name, at once.
assert [m.id for m in client.models.list()] == ["small", "gemma"]
assert client.models.retrieve("gemma").id == "gemma"
said, failed = {}, []


def write(model):
    try:
        for _ in range(3):
            # Not chats: gemma3-270m's file has no template.
            answer = client.completions.create(model=model, prompt="The sea is", max_tokens=12, temperature=0)
            assert answer.model == model and said.setdefault(model, answer.choices[0].text), answer
            assert said[model] == answer.choices[0].text, (said, answer)
    except Exception as e:
        failed.append(e)


threads = [threading.Thread(target=write, args=(model,)) for model in ("small", "gemma")]
[thread.start() for thread in threads]
# Beside them, vectors of both.
vectors = {}
for model in ("small", "gemma"):
    answer = client.embeddings.create(model=model, input=[sea, waves, tax], extra_body={"pooling": "mean"})
    assert answer.model == model and [d.index for d in answer.data] == [0, 1, 2], answer
    vectors[model] = [d.embedding for d in answer.data]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 12, answer.usage
    assert all(abs(product(v, v) - 1) < 1e-4 for v in vectors[model])
    # What is alike is nearer.
    alike, other = product(*vectors[model][:2]), product(vectors[model][0], vectors[model][2])
    print(model, "alike", alike, "other", other)
    assert alike > other
[thread.join() for thread in threads]
assert not failed, failed
assert said["small"] != said["gemma"] and len(vectors["small"][0]) != len(vectors["gemma"][0]), said
try:
    client.embeddings.create(model="large", input="x")
    raise AssertionError("no such model")
except openai.NotFoundError as e:
    assert e.code == "model_not_found" and "'small', 'gemma'" in e.message, e

# The client asks for base64 where nothing is said; numbers are the same.
one = client.embeddings.create(model="small", input=sea).data[0].embedding
numbers = client.embeddings.create(model="small", input=sea, encoding_format="float").data[0].embedding
raw = client.embeddings.create(model="small", input=sea, encoding_format="base64").data[0].embedding
assert near(one, numbers, 1e-6) and near(one, struct.unpack(f"<{len(one)}f", base64.b64decode(raw)), 1e-6)
body = json.dumps({"content": sea, "add_special": True, "model": "small"}).encode()
request = urllib.request.Request(url + "/tokenize", data=body, headers={"content-type": "application/json"})
tokens = json.load(urllib.request.urlopen(request))["tokens"]
assert near(client.embeddings.create(model="small", input=tokens).data[0].embedding, one)
assert len(client.embeddings.create(model="small", input=[tokens, tokens[:3]]).data) == 2
try:
    client.embeddings.create(model="small", input=sea, dimensions=16)
    raise AssertionError("no beginnings of vectors")
except openai.BadRequestError as e:
    assert e.param == "dimensions", e

# Through LangChain, which sends texts where it does not count their tokens itself.
embeddings = OpenAIEmbeddings(model="small", base_url=url + "/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0)
assert near(embeddings.embed_query(sea), one)
texts = [f"Number {i} of many short texts." for i in range(60)]
many = embeddings.embed_documents(texts)
assert len(many) == 60 and near(many[41], embeddings.embed_query(texts[41]))
answer = ChatOpenAI(model="small", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=12).invoke("What is the sea?")
assert answer.content and answer.response_metadata["model_name"] == "small", answer
print(json.dumps({"ok": True, "said": said, "width": {model: len(v[0]) for model, v in vectors.items()}}))
