"""Answers that are held to the schemas of the JSON Schema Test Suite: each one that ends is valid, and what cannot be kept to is refused.

    schemas.py URL SUITE [NUMBER]

URL is that of an `outboard serve`; SUITE the folder of the suite's tests, which the source package of `jsonschema` on PyPI has as `json/tests`. With a
number, so many schemas are tried, evenly from all of them. It prints a line of JSON: how many were refused, and for what."""

import collections
import concurrent.futures
import glob
import json
import re
import sys
import time

import httpx
import jsonschema

AT_A_TIME = 8
MOST_TOKENS = 160
DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


def schemas(suite):
    """All schemas of the suite that are objects, each once. Those that refer to files of its own server are not for anybody else."""
    found = {}
    for draft, name in DRAFTS.items():
        for path in sorted(glob.glob(f"{suite}/{draft}/*.json")):
            for group in json.load(open(path)):
                schema = group["schema"]
                text = json.dumps(schema, sort_keys=True)
                if isinstance(schema, dict) and "localhost:1234" not in text:
                    found.setdefault(text, {"$schema": name} | schema)
    return list(found.values())


def ask(client, schema):
    """What comes of a request with this schema: a word for the table, the number of tokens, and seconds."""
    request = {
        "messages": [{"role": "user", "content": "Answer with a short JSON value."}],
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    start = time.monotonic()
    answer = client.post("/v1/chat/completions", json=request)
    took = time.monotonic() - start
    body = answer.json()
    if answer.status_code == 400:
        assert body["error"]["param"].startswith("response_format"), body
        reason = re.sub(r"[\"'`].*|\d+", "..", body["error"]["message"].split(": ", 1)[-1])
        return f"refused: {reason[:60]}", 0, took
    assert answer.status_code == 200, (answer.status_code, body, schema)
    choice, tokens = body["choices"][0], body["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return "cut off", tokens, took
    try:
        value = json.loads(choice["message"]["content"])
        jsonschema.validators.validator_for(schema)(schema).validate(value)
    except (json.JSONDecodeError, jsonschema.ValidationError) as why:
        print(f"{json.dumps(schema)}: {choice['message']['content']!r}: {why}", file=sys.stderr)
        return "wrong", tokens, took
    return "valid", tokens, took


def main(url, suite, number=None):
    chosen = schemas(suite)
    if number and int(number) < len(chosen):
        chosen = [chosen[i * len(chosen) // int(number)] for i in range(int(number))]
    with httpx.Client(base_url=url, timeout=600) as client, concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        start = time.monotonic()
        results = list(pool.map(lambda schema: ask(client, schema), chosen))
        took = time.monotonic() - start
    counts = collections.Counter(what for what, _, _ in results)
    tokens = sum(tokens for _, tokens, _ in results)
    print(json.dumps({"schemas": len(chosen), **dict(counts.most_common()), "tokens": tokens, "seconds": round(took, 1)}))
    assert counts["wrong"] == 0 and counts["valid"] >= len(chosen) // 3, counts


main(*sys.argv[1:])
