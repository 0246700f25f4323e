#!/usr/bin/env python3
"""Measures `outboard serve` beside llama-server: the same model, the same load, in turns. Python 3, standard library only.

    cargo build --release -p outboard-cli -p outboard-rpc-server
    bench/serve/run.py -m MODEL.gguf --llama FOLDER            # this machine; FOLDER has llama-server
    sudo bench/serve/run.py -m MODEL.gguf --llama FOLDER --servers 2 --rtt 1
    sudo bench/serve/run.py -m MODEL.gguf --form --servers 2 --rtt 20       # texts that have a form beside those that have none

With --servers, hosts are made for it (../lan), each with an rpc-server of Outboard's, or with llama.cpp's ggml-rpc-server; the program that
serves, and the clients, are on a host of their own. What is made is removed again, whatever happens."""

import argparse
import atexit
import concurrent.futures
import http.client
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PORT = 8399
URL = f"http://127.0.0.1:{PORT}"  # on the client's host
START_LIMIT = 180  # seconds until a model is loaded
WORDS = "ship harbour night light water town road winter letter garden bridge stone river music window bread mountain field".split()


def lan_module():
    spec = importlib.util.spec_from_file_location("lan", HERE.parent / "lan" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the load ----------------------------------------------------------------------------------------------------------------


def one_text(url, prompt, tokens, form):
    """Asks for a text as it comes. Gives the seconds until its first token."""
    host = urllib.parse.urlsplit(url).netloc
    connection = http.client.HTTPConnection(host, timeout=600)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    if form:
        body["regex"] = "[a-z ]{9999}"
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{url}: {answer.status} {answer.read()[:300]}")
    first = None
    for line in answer:
        if line.startswith(b"data: ") and first is None:
            first = time.monotonic() - start
        if line.strip() == b"data: [DONE]":
            break
    connection.close()
    return first


def load(url, clients, texts, tokens, words, seed, form):
    """So many clients, each with so many texts one after another. No two prompts begin alike."""
    numbers = random.Random(seed)
    prompts = [" ".join(numbers.choices(WORDS, k=words)) for _ in range(clients * texts)]
    firsts, lock = [], threading.Lock()

    def client(number):
        for prompt in prompts[number * texts : (number + 1) * texts]:
            first = one_text(url, prompt, tokens, form)
            with lock:
                firsts.append(first)

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    took = time.monotonic() - start
    return {"tokens_per_second": clients * texts * tokens / took, "first_ms": statistics.median(firsts) * 1e3}


# --- the servers -------------------------------------------------------------------------------------------------------------


class Setting:
    """What is served, and where."""

    def __init__(self, args, tmp, lan, addresses, before):
        self.args, self.tmp, self.lan = args, tmp, lan
        self.addresses = addresses  # of hosts with a device to use; none: this machine's own
        self.before = before  # what commands of the client's host begin with

    @contextmanager
    def running(self, name, argv, before):
        log = open(self.tmp / f"{name}.log", "w")
        process = self.lan.processes.start([*before, *map(str, argv)], stdout=log, stderr=log)
        try:
            yield process
        finally:
            self.lan.processes.end(process)
            log.close()

    def outboard(self, stack):
        bin, port = Path(self.args.bin), 50052
        rpc = []
        for host, address in self.addresses:
            argv = [bin / "rpc-server", "-H", address, "-p", port, "--insecure", "-d", "cpu:1"]
            stack.enter_context(self.running(f"rpc-{address}", argv, host))
            rpc.append(f"{address}:{port}")
        where = ["--rpc", ",".join(rpc), "--ts", ",".join("1" for _ in rpc)] if rpc else ["-t", self.args.threads]
        wait_for_rpc(self, rpc)
        argv = [bin / "outboard", "serve", "-m", self.args.model, "-np", self.args.most, "-c", self.args.context, "--port", PORT, *where]
        stack.enter_context(self.running("outboard", argv, self.before))

    def llama(self, stack):
        folder, port = Path(self.args.llama), 50053
        rpc = []
        for host, address in self.addresses:
            argv = [folder / "ggml-rpc-server", "-H", address, "-p", port, "-t", 1]
            stack.enter_context(self.running(f"ggml-{address}", argv, host))
            rpc.append(f"{address}:{port}")
        where = ["--rpc", ",".join(rpc), "-ngl", 99, "-dev", ",".join(f"RPC{i}" for i in range(len(rpc)))] if rpc else []
        wait_for_rpc(self, rpc)
        argv = [folder / "llama-server", "-m", self.args.model, "-np", self.args.most, "-c", self.args.context * self.args.most]
        argv += ["-t", self.args.threads, "--port", PORT, "--no-webui", *where]
        stack.enter_context(self.running("llama", argv, self.before))


def wait_for_rpc(setting, addresses):
    """Waits until servers listen, as the client's host sees it."""
    for address in addresses:
        host, port = address.rsplit(":", 1)
        probe = [sys.executable, "-c", f"import socket; socket.create_connection(({host!r}, {port}), 2)"]
        until(lambda probe=probe: succeeds([*setting.before, *probe]), f"{address} does not listen")


def succeeds(argv):
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def until(is_so, what, limit=START_LIMIT):
    end = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(what)
        time.sleep(0.1)


def ask(setting, argv):
    """Runs this script's load on the client's host."""
    command = [*setting.before, sys.executable, str(Path(__file__).resolve()), "--load", URL, *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-800:])
    return json.loads(done.stdout)


def measure(setting, clients, pair):
    """Both in turns, the first of them first in every other pair."""
    args, results = setting.args, {}
    sides = [("outboard", setting.outboard, 0), (args.other, setting.outboard if args.form else setting.llama, int(args.form))]
    for name, start, form in sides if pair % 2 == 0 else reversed(sides):
        with ExitStack() as stack:
            start(stack)
            health = f"import urllib.request; urllib.request.urlopen('{URL}/health', timeout=2)"
            until(lambda: succeeds([*setting.before, sys.executable, "-c", health]), f"{name} does not answer")
            ask(setting, [1, 1, 8, 8, 1, form])
            for count in clients:
                texts = max(2, args.texts // count)
                results[name, count] = ask(setting, [count, texts, args.tokens, args.words, 100 * count + pair, form])
    return results


def table(pairs, clients, other):
    print(f"| clients | tokens per second, Outboard | {other} | ratio | of pairs | first token, Outboard | {other} |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in clients:
        ours = [pair["outboard", count] for pair in pairs]
        theirs = [pair[other, count] for pair in pairs]
        ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(ours, theirs)]
        middle = lambda rows, name: statistics.median(row[name] for row in rows)
        print(
            f"| {count} | {middle(ours, 'tokens_per_second'):.1f} | {middle(theirs, 'tokens_per_second'):.1f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f}..{max(ratios):.2f} | {middle(ours, 'first_ms'):.0f} ms | {middle(theirs, 'first_ms'):.0f} ms |"
        )


def main():
    if sys.argv[1:2] == ["--load"]:
        url, *numbers = sys.argv[2:]
        print(json.dumps(load(url, *map(int, numbers))))
        return
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True, help="a GGUF file")
    beside = p.add_mutually_exclusive_group(required=True)
    beside.add_argument("--llama", metavar="FOLDER", help="beside llama-server, which is there with ggml-rpc-server")
    beside.add_argument("--form", action="store_true", help="beside texts that a regular expression holds to letters")
    p.add_argument("--bin", default=ROOT / "target" / "release", help="the folder of outboard and rpc-server [target/release]")
    p.add_argument("--clients", default="1,4,16", help="how many ask at a time [1,4,16]")
    p.add_argument("--texts", type=int, default=32, help="texts of all clients together, two each at least [32]")
    p.add_argument("-n", "--tokens", type=int, default=64, help="tokens of a text [64]")
    p.add_argument("-w", "--words", type=int, default=60, help="words of a prompt [60]")
    p.add_argument("-c", "--context", type=int, default=512, help="context of a text [512]")
    p.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads of the program that serves [all processors]")
    p.add_argument("-r", "--pairs", type=int, default=3, help="pairs; medians are made of them [3]")
    p.add_argument("--servers", type=int, default=0, help="rpc-servers of one thread each, on hosts of their own [0]")
    p.add_argument("--rtt", type=float, default=1, help="milliseconds there and back between hosts [1]")
    p.add_argument("--json", metavar="FILE", help="also write the results there")
    args = p.parse_args()
    clients = [int(count) for count in args.clients.split(",")]
    args.most, args.other = max(clients), "with a form" if args.form else "llama-server"
    lan = lan_module()
    tmp = Path(tempfile.mkdtemp(prefix="outboard-serve-"))
    atexit.register(shutil.rmtree, tmp, True)
    addresses, before = [], []
    if args.servers:
        subprocess.run(["cc", "-O2", "-pthread", "-o", tmp / "lanem", HERE.parent / "lan" / "lanem.c"], check=True)
        network = lan.Lan(tmp / "lanem", args.servers + 1, args.rtt)
        atexit.register(network.close)
        addresses = [(network.inside(i), f"10.77.0.{i}") for i in range(1, args.servers + 1)]
        before = network.inside(args.servers + 1)
        subprocess.run([*before, "ip", "link", "set", "lo", "up"], check=True)
    setting = Setting(args, tmp, lan, addresses, before)
    pairs = []
    for pair in range(args.pairs):
        pairs.append(measure(setting, clients, pair))
        print(f"pair {pair + 1} of {args.pairs}: {({f'{n} {c}': round(r['tokens_per_second'], 1) for (n, c), r in pairs[-1].items()})}", file=sys.stderr)
    table(pairs, clients, args.other)
    if args.json:
        rows = [[{"program": name, "clients": count, **row} for (name, count), row in pair.items()] for pair in pairs]
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
