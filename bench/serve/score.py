#!/usr/bin/env python3
"""Measures how long `outboard serve` takes to say how probable the tokens of prompts are, beside reading them. Python 3, standard library only.

    outboard serve -m MODEL.gguf -np 4 -c 1024
    bench/serve/score.py http://127.0.0.1:8080"""

import argparse
import json
import random
import statistics
import time
import urllib.request

WAYS = {
    "read": {"max_tokens": 1, "cache_prompt": False},
    "scored": {"max_tokens": 0, "echo": True, "logprobs": 0},
    "scored, with the most probable tokens": {"max_tokens": 0, "echo": True, "logprobs": 5},
}


def seconds(url, tokens, way):
    body = json.dumps({"prompt": tokens, "temperature": 0, **way}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    start = time.monotonic()
    urllib.request.urlopen(request, timeout=600).read()
    return time.monotonic() - start


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("-p", "--tokens", type=int, default=480, help="tokens of a prompt [480]")
    p.add_argument("-r", "--rounds", type=int, default=7, help="prompts for each way, in turns; medians are made of them [7]")
    args = p.parse_args()
    numbers = random.Random(1)
    took = {name: [] for name in WAYS}
    for _ in range(args.rounds + 1):
        for name, way in WAYS.items():
            took[name].append(seconds(args.url, [numbers.randrange(1000, 20000) for _ in range(args.tokens)], way))
    # The first ones compile graphs.
    read = took["read"][1:]
    for name, times in took.items():
        ratios = [time / beside for time, beside in zip(times[1:], read)]
        rate, ratio = args.tokens / statistics.median(times[1:]), statistics.median(ratios)
        print(f"{name}: {rate:.0f} tokens a second, {ratio:.2f} times as long ({min(ratios):.2f}..{max(ratios):.2f})")


if __name__ == "__main__":
    main()
