#!/usr/bin/env python3
"""Measures what the network costs Outboard, on hosts that are made for it: namespaces on this machine with real latency and
bandwidth (lanem.c). Python 3, standard library only; root, iproute2, util-linux and a C compiler.

    cargo build --release -p outboard-cli -p outboard-rpc-server && cargo build --release -p outboard-rpc-client --examples
    bench/lan/run.py                      # every case, as a markdown table
    bench/lan/run.py cost-1s-1ms load     # some
    bench/lan/run.py --list

What is made (namespaces, processes, folders) is removed again, whatever happens; nothing runs longer than --limit."""

import argparse
import atexit
import ctypes
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MBIT = 1000  # rate of each host's link
START_LIMIT = 20  # seconds until a server listens
COMMAND_LIMIT = 600  # seconds for one run of a program
MIB = 1 << 20
PROMPT = "Once upon a time"


class Failed(Exception):
    """A case that could not be measured."""


# --- processes and namespaces ------------------------------------------------------------------------------------------------


def die_with_parent():
    """In a child: SIGTERM when this script ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Processes:
    """Everything that was started; ended by its own id."""

    def __init__(self):
        self.running = []

    def start(self, argv, **options):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent, **options)
        self.running.append(process)
        return process

    def end(self, process, sig=signal.SIGTERM, wait=10):
        if process.poll() is None:
            process.send_signal(sig)
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process in self.running:
            self.running.remove(process)

    def end_all(self):
        for process in list(reversed(self.running)):
            self.end(process)


processes = Processes()
atexit.register(processes.end_all)


class Lan:
    """Hosts with a delay between them. Host i has the address 10.77.0.i."""

    def __init__(self, lanem, hosts, rtt_ms, loss_ppm=0):
        self.prefix = f"ob{os.getpid()}x"
        self.hosts = hosts
        argv = [lanem, "-n", str(hosts), "-d", str(int(rtt_ms * 500)), "-r", str(MBIT), "-l", str(loss_ppm), "-p", self.prefix]
        self.process = processes.start([str(a) for a in argv], stdout=subprocess.PIPE, text=True)
        first = first_line(self.process.stdout, lambda line: line.strip() == "ready")
        if first is None:
            self.close()
            raise Failed("the network emulator did not start (does this kernel have TUN and network namespaces?)")

    def inside(self, host):
        return ["ip", "netns", "exec", f"{self.prefix}{host}"]

    def traffic(self, host):
        """Bytes that a host has sent and received, IP headers included."""
        text = output(["ip", "-n", f"{self.prefix}{host}", "-j", "-s", "link", "show", "lan0"])
        stats = json.loads(text)[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]

    def close(self):
        processes.end(self.process)
        for i in range(1, self.hosts + 1):  # only if the emulator was killed before it could
            if Path(f"/run/netns/{self.prefix}{i}").exists():
                subprocess.run(["ip", "netns", "del", f"{self.prefix}{i}"], check=False)


def first_line(stream, wanted, limit=START_LIMIT):
    """The first line that is wanted, and then drains the rest in the background; None if it does not come in time."""
    found, event = [], threading.Event()

    def read():
        for line in stream:
            if not found and wanted(line):
                found.append(line)
                event.set()
        event.set()

    threading.Thread(target=read, daemon=True).start()
    event.wait(limit)
    return found[0] if found else None


def output(argv, limit=30):
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=limit).stdout


class Bench:
    """What cases use: programs, models, hosts."""

    def __init__(self, args):
        self.args = args
        self.tmp = Path(tempfile.mkdtemp(prefix="outboard-lan-"))
        atexit.register(shutil.rmtree, self.tmp, True)
        self.bin = Path(args.bin)
        for name in ("outboard", "rpc-server"):
            if not (self.bin / name).is_file():
                sys.exit(f"there is no {self.bin / name}: cargo build --release -p outboard-cli -p outboard-rpc-server")
        self.lanem = self.tmp / "lanem"
        subprocess.run(["cc", "-O2", "-pthread", "-o", self.lanem, HERE / "lanem.c"], check=True)
        self.server_help = output([self.bin / "rpc-server", "--help"])
        self.texts = {}
        self.env = {}  # of outboard

    @contextmanager
    def lan(self, servers, rtt_ms, extra=(), loss_ppm=0):
        """Servers 10.77.0.1.. and a host for the client behind them. Gives (addresses, prefix of client commands, lan)."""
        lan = Lan(self.lanem, servers + 1, rtt_ms, loss_ppm)
        with ExitStack() as stack:
            stack.callback(lan.close)
            addresses = []
            for i in range(1, servers + 1):
                argv = ["-H", f"10.77.0.{i}", "-p", "50052", "--insecure", "-d", "cpu:1", *[e.replace("{i}", str(i)) for e in extra]]
                addresses.append(stack.enter_context(self.server(argv, lan.inside(i))))
            yield addresses, lan.inside(servers + 1), lan

    @contextmanager
    def server(self, argv, before=()):
        """An rpc-server that listens; gives its address."""
        log = open(self.tmp / "server.log", "a+")
        process = processes.start([*before, str(self.bin / "rpc-server"), *argv], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = first_line(process.stdout, lambda line: line.startswith("listening on "))
            if line is None:
                log.seek(0)
                raise Failed(f"rpc-server {' '.join(argv)} does not listen: {log.read()[-500:]}")
            yield line.split()[-1]
        finally:
            processes.end(process)
            log.close()

    def certificates(self, *names):
        """A CA and certificates for servers of these names; gives the server's flags and the client's variables."""
        pki = self.tmp / "pki"
        if not pki.exists():
            output([self.bin / "outboard", "cert", pki, *(part for name in names for part in ("--name", name))])
        flags = ["--tls-cert", f"{pki}/server.pem", "--tls-key", f"{pki}/server-key.pem", "--client-ca", f"{pki}/ca.pem"]
        env = {"OUTBOARD_CA": f"{pki}/ca.pem", "OUTBOARD_CERT": f"{pki}/client.pem", "OUTBOARD_KEY": f"{pki}/client-key.pem"}
        return flags, env

    def client_env(self):
        """What outboard is started with: this script names the servers, nobody else."""
        return {k: v for k, v in os.environ.items() if k != "OUTBOARD_RPC"} | self.env

    def outboard(self, argv, before=(), limit=COMMAND_LIMIT, watch=None):
        """Runs outboard and gives its JSON. `watch` is called with its process id while it runs."""
        err = open(self.tmp / "client.log", "w+")
        process = processes.start([*before, str(self.bin / "outboard"), *argv], stdout=subprocess.PIPE, stderr=err, text=True, env=self.client_env())
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            if watch:
                threading.Thread(target=watch, args=(process.pid,), daemon=True).start()
            text = process.stdout.read()
            code = process.wait()
        finally:
            timer.cancel()
            processes.end(process)
        err.seek(0)
        if code != 0:
            lines = err.read().strip().splitlines() or ["it said nothing"]
            line = next((line for line in lines if line.startswith("error:")), lines[-1])
            raise Failed(f"outboard {' '.join(argv)}: exit {code}: {line}")
        err.close()
        return json.loads(text)

    @contextmanager
    def environment(self, env):
        """Variables for outboard."""
        self.env = env
        try:
            yield
        finally:
            self.env = {}

    def bench(self, argv, before=(), prompt=0, gen=0, repetitions=None):
        args = ["bench", "-m", self.args.model, "-p", str(prompt), "-n", str(gen), "-t", "1", "-o", "json"]
        return self.outboard([*args, "-r", str(repetitions or self.args.repetitions), *argv], before)

    def text(self, argv, before, seeded):
        """The tokens of a short text."""
        sampling = ["--temp", "0.8", "-s", "1"] if seeded else ["--temp", "0"]
        args = ["run", "-m", self.args.model, "-p", PROMPT, "-n", "40", "--ignore-eos", "-t", "1", "--json", *sampling]
        return self.outboard([*args, *argv], before)["tokens"]

    def same_text(self, argv, before):
        """Whether servers give the tokens that this machine gives, greedily and by a seed."""
        for seeded in (False, True):
            if seeded not in self.texts:
                self.texts[seeded] = self.text([], [], seeded)
            if self.text(argv, before, seeded) != self.texts[seeded]:
                return False
        return True


# --- cases -------------------------------------------------------------------------------------------------------------------


class Result:
    """A line of the table: what was measured beside its target, if there is one. `at_most` says on which side of it is good."""

    def __init__(self, name, what, value, unit, target=None, floor="", at_most=True, note=""):
        self.name, self.what, self.value, self.unit = name, what, value, unit
        self.target, self.floor, self.at_most, self.note = target, floor, at_most, note

    def reached(self):
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


CASES = {}


def case(name, about):
    def register(run):
        CASES[name] = (about, run)
        return run

    return register


def rpc(addresses):
    parts = ["-ts", ",".join("1" for _ in addresses)] if len(addresses) > 1 else []
    return ["--rpc", ",".join(addresses), *parts]


def token_cost(b, name, addresses, before, floor, target, label):
    """Network cost of a token, its traffic, and whether the text is the same."""
    rows = b.bench([*rpc(addresses), "--local"], before, gen=b.args.gen)
    row = next(r for r in rows if r["remote"])
    local = next(r for r in rows if not r["remote"])
    beside = row["beside"][0]
    cost = beside["cost_ms"]
    note = f"{row['ms_per_token']:.2f} against {local['ms_per_token']:.2f} ms per token, pairs {cost['min']:.2f}..{cost['max']:.2f}"
    if not b.args.no_texts:
        note += ", same text" if b.same_text(rpc(addresses), before) else ", ANOTHER TEXT"
    yield Result(name, f"network cost of a token, {label}", cost["median"], "ms", target, floor, note=note)
    # The local device with pages as large as a server's: what is left is the network.
    rows = b.bench([*rpc(addresses), "--local", "--no-mmap"], before, gen=b.args.gen)
    fair = next(r for r in rows if r["remote"])["beside"][0]["cost_ms"]
    note = f"pairs {fair['min']:.2f}..{fair['max']:.2f}"
    yield Result(name + "-pages", f"the same against a local device with `--no-mmap`, {label}", fair["median"], "ms", target, floor, note=note)
    per_server = (row["sent_bytes"] + row["recv_bytes"]) / len(addresses)
    note = f"{row['sent_bytes']:.0f} sent, {row['recv_bytes']:.0f} received, {row['peer_bytes']:.0f} between servers"
    yield Result(name + "-bytes", f"client bytes per token and server, {label}", per_server, "bytes", 400, note=note)


def register_cost(servers, rtt, floor, target):
    name, label = f"cost-{servers}s-{rtt}ms", f"{servers} server{'s' * (servers > 1)}, RTT {rtt} ms"

    @case(name, f"network cost of a token: {label}")
    def run(b):
        with b.lan(servers, rtt) as (addresses, before, _):
            yield from token_cost(b, name, addresses, before, floor, target, label)


for setting in [(1, 1, 0, 0.35), (1, 20, 0, 0.35), (1, 100, 0, 0.35), (2, 1, 1, 1.7), (2, 20, 20, 20.7), (4, 1, 2, 3.4)]:
    register_cost(*setting)


@case("cost-2s-loopback", "network cost of a token: 2 servers on loopback")
def cost_loopback(b):
    with ExitStack() as stack:
        addresses = [stack.enter_context(b.server(["-p", "0", "-d", "cpu:1"])) for _ in range(2)]
        yield from token_cost(b, "cost-2s-loopback", addresses, [], 0, 0.4, "2 servers on loopback")


def register_first(servers, rtt):
    name, label = f"first-{servers}s-{rtt}ms", f"{servers} server{'s' * (servers > 1)}, RTT {rtt} ms"

    @case(name, f"the first token of a run, and the whole of it: {label}")
    def run(b):
        firsts, loads, walls = [], [], []
        argv = ["run", "-m", b.args.model, "-p", PROMPT, "-n", "1", "--temp", "0", "-t", "1", "-c", "512", "--json"]
        with b.lan(servers, rtt) as (addresses, before, _):
            for _ in range(b.args.repetitions):
                start = time.monotonic()
                timings = b.outboard([*argv, *rpc(addresses)], before)["timings"]
                walls.append((time.monotonic() - start) * 1e3)
                firsts.append(timings["prompt_ms"])
                loads.append(timings["load_ms"])
        load, wall = statistics.median(loads), statistics.median(walls)
        note = f"{min(firsts):.0f}..{max(firsts):.0f}; load {load:.0f}, all of the program {wall:.0f} ms"
        yield Result(name, f"a short prompt's token after the load, {label}", statistics.median(firsts), "ms", note=note)


for rtt in (1, 20, 100):
    for servers in (1, 2, 4):
        register_first(servers, rtt)


def scaling(b, name, label, argv, beside):
    rows = b.bench([*argv, "--beside", beside], prompt=2048)
    ratio = rows[0]["beside"][0]["ratio"]
    note = f"{rows[0]['median_tps']:.0f} against {rows[1]['median_tps']:.0f} t/s, pairs {ratio['min']:.2f}..{ratio['max']:.2f}"
    yield Result(name, label, ratio["median"], "times", 1.85, 2.0, at_most=False, note=note)


@case("prefill-2s", "prefill 2048: 2 servers pinned to a core each, loopback, against one of them")
def prefill_servers(b):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("needs two cores")
    with ExitStack() as stack:
        pinned = lambda core: b.server(["-p", "0", "-d", "cpu:1"], ["taskset", "-c", str(core)])
        addresses = [stack.enter_context(pinned(core)) for core in cores[:2]]
        yield from scaling(b, "prefill-2s", "prefill 2048, 2 servers of a core each, loopback, against one", rpc(addresses), addresses[0])


@case("prefill-2d", "prefill 2048: two devices of one endpoint against one")
def prefill_devices(b):
    with b.server(["-p", "0", "-d", "cpu:1,cpu:1"]) as address:
        argv = ["--rpc", address, "-ts", "1,1"]
        yield from scaling(b, "prefill-2d", "prefill 2048, two devices of one endpoint, against one", argv, f"{address}/CPU0")


@case("many-2s", "8 sequences at once: 2 servers pinned to a core each, loopback, against one of them")
def many_servers(b):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("two cores are needed")
    with ExitStack() as stack:
        pinned = lambda i: stack.enter_context(b.server(["-p", "0", "-d", "cpu:1"], ["taskset", "-c", str(cores[i])]))
        addresses = [pinned(0), pinned(1)]
        rows = b.bench([*rpc(addresses), "--beside", addresses[0], "-np", "8"], gen=b.args.gen)
        ratio = rows[0]["beside"][0]["ratio"]
        note = f"{rows[0]['median_tps']:.0f} against {rows[1]['median_tps']:.0f} t/s, pairs {ratio['min']:.2f}..{ratio['max']:.2f}"
        yield Result("many-2s", "decode of 8 sequences, 2 servers of one core each against one", ratio["median"], "times", 1.7, 2.0, at_most=False, note=note)


@case("many-4s-20ms", "16 sequences at once against one: 4 servers, RTT 20 ms")
def many_far(b):
    with b.lan(4, 20) as (addresses, before, _):
        one, many = b.bench([*rpc(addresses), "-np", "1,16"], before, gen=b.args.gen)
        note = f"{many['median_tps']:.0f} against {one['median_tps']:.1f} t/s"
        yield Result("many-4s-20ms", "decode of 16 sequences against one, 4 servers, RTT 20 ms", many["median_tps"] / one["median_tps"], "times", 10, 16, at_most=False, note=note)


def cache(b, name):
    """Arguments that give each server a fresh cache, if they know what that is."""
    if not re.search(r"^\s*-c\b", b.server_help, re.M):
        return []
    return ["-c", tempfile.mkdtemp(prefix=f"cache-{name}-{{i}}-", dir=b.tmp)]


def forget_caches(b):
    """Removes what servers have kept: the next ones get their memory from it, as on a host that has been in use for a while, and not
    such as a virtual machine has never used yet, which can be slower than the network."""
    for folder in b.tmp.glob("cache-*"):
        shutil.rmtree(folder, True)


def load(b, addresses, before, watch=None):
    """Puts the big model on servers and takes one token; gives (ms, bytes sent)."""
    os.sync()  # what an earlier load has written to a cache is on the disk, and does not go there meanwhile
    argv = ["run", "-m", b.args.big, "-p", PROMPT, "-n", "1", "--temp", "0", "-t", "1", "-c", "512", "--json"]
    report = b.outboard([*argv, *rpc(addresses)], before, watch=watch)
    return report["timings"]["load_ms"], report["net"]["sent_bytes"], sum(d["weight_bytes"] for d in report["devices"])


class PeakMemory:
    """Largest anonymous memory of a process, sampled: mapped files do not count."""

    def __init__(self):
        self.bytes = 0

    def __call__(self, pid):
        try:
            while True:
                fields = dict(re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
                self.bytes = max(self.bytes, (int(fields["RssAnon"]) + int(fields["RssShmem"])) << 10)
                time.sleep(0.005)
        except (OSError, KeyError):
            pass  # it has ended


# A file to a program that reads it, and one byte back.
TAKE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5001))
print("listening", flush=True)
peer, left, buffer = listener.accept()[0], int(sys.argv[2]), bytearray(1 << 20)
while left > 0 and (n := peer.recv_into(buffer)):
    left -= n
peer.send(b"x")
"""
GIVE = """
import os, socket, sys, time
path, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "rb") as file, socket.create_connection((address, 5001)) as peer:
    start, sent = time.monotonic(), 0
    while sent < size:
        sent += os.sendfile(peer.fileno(), file.fileno(), sent, min(1 << 20, size - sent))
    peer.recv(1)
    print(1e3 * (time.monotonic() - start))
"""


def bare_socket(b, size):
    """Milliseconds that the system takes for so many bytes of a file from host to host, with nothing in between."""
    path = output([b.bin / "outboard", "fetch", b.args.big]).split()[-1]
    os.sync()  # as in `load`
    lan = Lan(b.lanem, 2, 1)
    try:
        argv = [*lan.inside(1), sys.executable, "-c", TAKE, "10.77.0.1", str(size)]
        taker = processes.start(argv, stdout=subprocess.PIPE, text=True)
        if first_line(taker.stdout, lambda line: line.startswith("listening")) is None:
            raise Failed("the taker of a bare file does not listen")
        return float(output([*lan.inside(2), sys.executable, "-c", GIVE, path, "10.77.0.1", str(size)], 60))
    finally:
        lan.close()


@case("load", "load qwen2.5-coder at 1 Gbit/s: cold, and again; memory of the client")
def load_case(b):
    cold, wire, again, sent_again, peak, weights = [], [], [], [], PeakMemory(), 0
    plain, bare = [], []
    has_cache = bool(cache(b, "probe"))
    for round in range(b.args.repetitions):
        with b.lan(1, 1, cache(b, f"load{round}")) as (addresses, before, lan):
            ms, _, weights = load(b, addresses, before)
            cold.append(ms)
            wire.append(lan.traffic(2)[0] * 8 / (MBIT * 1e3) / ms)
            ms, sent, _ = load(b, addresses, before)
            again.append(ms)
            sent_again.append(sent)
        forget_caches(b)
        with b.lan(1, 1) as (addresses, before, _):
            plain.append(load(b, addresses, before)[0])
        bare.append(bare_socket(b, weights))
    with b.lan(1, 1, cache(b, "memory")) as (addresses, before, _):
        load(b, addresses, before, peak)  # one of its own: looking at memory every few milliseconds takes some of the time
    line_ms = weights * 8 / (MBIT * 1e3)
    median = statistics.median
    size = f"{weights / MIB:.0f} MiB"
    note = f"{median(cold) / 1e3:.2f} s for {size}, {min(cold) / 1e3:.2f}..{max(cold) / 1e3:.2f}; {100 * median(wire):.0f} % with TCP and IP headers"
    yield Result("load", f"load {size} cold, 1 Gbit/s, onto a server that keeps it", 100 * line_ms / median(cold), "% of line rate", 95, 100, False, note)
    note = f"{median(plain) / 1e3:.2f} s, {min(plain) / 1e3:.2f}..{max(plain) / 1e3:.2f}; sendfile on a bare socket {median(bare) / 1e3:.2f} s, {100 * line_ms / median(bare):.1f} %"
    yield Result("load-plain", f"load {size} cold, 1 Gbit/s, onto one that does not", 100 * line_ms / median(plain), "% of line rate", 95, 100, False, note)
    note = "" if has_cache else "this server has no cache"
    yield Result("load-again", "load again: time", median(again) / 1e3, "s", 0.5, 0, note=note)
    yield Result("load-again-bytes", "load again: sent", median(sent_again) / MIB, "MiB", 1, 0, note=note)
    yield Result("load-memory", "client memory while loading, mapped file not counted", peak.bytes / MIB, "MiB", 64)


@case("load-2s", "the same weights onto 2 servers that both need all of them: client bytes against one")
def load_both(b):
    example = b.bin / "examples" / "content"
    if not example.is_file():
        raise Failed("cargo build --release -p outboard-rpc-client --example content")
    path = output([b.bin / "outboard", "fetch", b.args.big]).split()[-1]
    one, both, seconds = [], [], ([], [])

    def measure(count, round, wire, times):
        with b.lan(2, 1, cache(b, f"both{count}{round}")) as (addresses, before, lan):
            start = lan.traffic(3)[0]
            text = output([*before, str(example), path, *addresses[:count]], 120)
            wire.append(lan.traffic(3)[0] - start)
            times.append(float(re.search(r"([\d.]+) s,", text)[1]))
        forget_caches(b)

    for round in range(3):  # bytes do not scatter as times do
        measure(1, round, one, seconds[0])
        measure(2, round, both, seconds[1])
    one, both = statistics.median(one), statistics.median(both)
    times = [statistics.median(s) for s in seconds]
    note = f"{both / MIB:.0f} against {one / MIB:.0f} MiB on the wire, {times[1]:.2f} against {times[0]:.2f} s"
    yield Result("load-2s", "the same weights onto 2 servers", both / one, "times the bytes of one", 1.1, 1.0, note=note)


@case("echo", "echo of a command while an upload saturates loopback; upload on loopback (example `loopback` of rpc-client)")
def echo(b):
    example = b.bin / "examples" / "loopback"
    if not example.is_file():
        raise Failed("cargo build --release -p outboard-rpc-client --example loopback")
    echoes, rates = [], []
    units = {"ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}
    with b.server(["-p", "0", "-d", "cpu:1,cpu:1"]) as address:
        for _ in range(b.args.repetitions):
            text = output([example, address], 120)
            found = re.search(r"while an upload runs: .* median ([\d.]+)(ns|µs|ms|s),", text)
            if not found:
                raise Failed(f"the example says something else: {text[-300:]}")
            echoes.append(float(found[1]) * units[found[2]])
            rates.append(statistics.median(float(r) for r in re.findall(r"upload: ([\d.]+) GB/s", text)))
    spread = lambda v: f"{min(v):.2f}..{max(v):.2f}"
    yield Result("echo", "median echo while an upload saturates loopback", statistics.median(echoes), "us", 200, 27, note=spread(echoes))
    yield Result("upload", "upload on loopback, plaintext", statistics.median(rates), "GB/s", 2.4, 3.2, False, spread(rates))
    # Both ends in one process, as its certificate is made there.
    encrypted = []
    for _ in range(b.args.repetitions):
        text = output([example, "tls"], 120)
        encrypted.append(statistics.median(float(r) for r in re.findall(r"upload: ([\d.]+) GB/s", text)))
    yield Result("upload-tls", "upload on loopback, TLS", statistics.median(encrypted), "GB/s", 1.5, 2.1, False, spread(encrypted))


@case("quic-loss", "QUIC, RTT 20 ms, 0.5 % loss: gaps between tokens while another 400 MiB uploads")
def quic_loss(b):
    flags, env = b.certificates("10.77.0.1")
    with b.lan(1, 20, flags, loss_ppm=5000) as (addresses, before, _), b.environment(env):
        argv = ["--rpc", f"quic://{addresses[0]}"]
        alone = b.bench(argv, before, gen=b.args.gen, repetitions=3)[0]["gap_ms"]
        stop = threading.Event()

        def upload():
            while not stop.is_set():
                try:
                    b.outboard(["run", "-m", b.args.big, "-p", PROMPT, "-n", "1", "-c", "512", "-t", "1", "--json", *argv], before, 120)
                except Failed:
                    return

        other = threading.Thread(target=upload)
        other.start()
        try:
            time.sleep(1)
            loaded = b.bench(argv, before, gen=b.args.gen, repetitions=5)[0]["gap_ms"]
        finally:
            stop.set()
            other.join()
    note = f"95th percentile {loaded['p95']:.1f} ms, median without the upload {alone['p50']:.1f} ms"
    yield Result("quic-loss", "gap between tokens during an upload, QUIC, 0.5 % loss", loaded["p95"] / alone["p50"], "times", 2, note=note)


class Talker:
    """An outboard whose text is read as it comes."""

    def __init__(self, b, argv):
        self.read = [(time.monotonic(), 0)]  # when, bytes so far
        argv = [str(b.bin / "outboard"), *argv]
        self.process = processes.start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=b.client_env())
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        while part := os.read(self.process.stdout.fileno(), 1 << 16):
            self.read.append((time.monotonic(), self.read[-1][1] + len(part)))

    def at(self, when):
        """Bytes that had come by then."""
        return max(n for t, n in self.read if t <= when)

    def wait(self):
        self.thread.join(COMMAND_LIMIT)
        if self.process.wait(10) != 0:
            raise Failed(f"a client among others failed: exit {self.process.returncode}")


@case("crowd", "24 clients at once on one server: how fair, while all of them write")
def crowd(b):
    clients, tokens = 24, 4 * b.args.gen
    # The same text for all: its bytes count the same.
    argv = ["run", "-m", b.args.model, "-p", PROMPT, "-n", str(tokens), "--temp", "0", "--ignore-eos", "-c", "512"]
    with b.server(["-p", "0", "-d", "cpu:1"]) as address:
        talkers = [Talker(b, [*argv, "--rpc", address]) for _ in range(clients)]
        for talker in talkers:
            talker.wait()
    # The first text is the prompt's own, or the first token: from the second on, all write until the first of them has done.
    start = max(talker.read[2][0] for talker in talkers)
    end = min(talker.read[-1][0] for talker in talkers)
    if len({talker.read[-1][1] for talker in talkers}) != 1:
        raise Failed("the clients did not write the same text")
    rates = [(talker.at(end) - talker.at(start)) / talker.read[-1][1] * tokens / (end - start) for talker in talkers]
    mean = statistics.mean(rates)
    off = 100 * max(abs(rate / mean - 1) for rate in rates)
    note = f"{min(rates):.2f} to {max(rates):.2f} t/s each, {sum(rates):.0f} together, in {end - start:.0f} s in which all of them wrote"
    yield Result("crowd", "24 clients at once: the one farthest from the mean", off, "% of the mean", 20, 0, note=note)


# --- the table ---------------------------------------------------------------------------------------------------------------


def number(value):
    if value == "" or value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")


def table(results, before):
    head = ["case", "floor", "must reach", *(["before"] if before else []), "measured", "", "detail"]
    print(f"| {' | '.join(head)} |\n|{'|'.join(['---'] + ['--:'] * (len(head) - 3) + ['---', '---'])}|")
    for r in results:
        old = [number(before.get(r.name, {}).get("value"))] if before else []
        sign = "at most" if r.at_most else "at least"
        verdict = {None: "", True: "reached", False: "not yet"}[r.reached()]
        wanted = r.unit if r.target is None else f"{sign} {number(r.target)} {r.unit}"
        cells = [r.what, number(r.floor), wanted, *old, f"**{number(r.value)}**", verdict, r.note]
        print(f"| {' | '.join(cells)} |")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", metavar="CASE", help="cases to run, or the beginnings of their names; all by default")
    p.add_argument("--list", action="store_true", help="list the cases")
    p.add_argument("--bin", default=ROOT / "target" / "release", help="folder of the programs [target/release]")
    p.add_argument("--model", default="smollm2", help="the small model [smollm2]")
    p.add_argument("--big", default="qwen2.5-coder-0.5b", help="the model of the load cases [qwen2.5-coder-0.5b]")
    p.add_argument("-r", "--repetitions", type=int, default=7, help="repetitions; medians are made of them [7]")
    p.add_argument("-n", "--gen", type=int, default=64, help="tokens of a repetition [64]")
    p.add_argument("--no-texts", action="store_true", help="do not check that the text is the same")
    p.add_argument("--json", metavar="FILE", help="also write the results there")
    p.add_argument("--before", metavar="FILE", help="results of an earlier run, for a column of their own")
    p.add_argument("--limit", type=int, default=3600, help="seconds after which the run ends, whatever it is at [3600]")
    return p.parse_args()


def on_signal(number, _):
    # Everything is removed on the way out; a second signal must not cut that short.
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(s, signal.SIG_IGN)
    raise SystemExit("the time of --limit is over" if number == signal.SIGALRM else 128 + number)


def main():
    args = parse()
    if args.list:
        for name, (about, _) in CASES.items():
            print(f"{name:18} {about}")
        return 0
    chosen = [n for n in CASES if not args.cases or any(n.startswith(c) for c in args.cases)]
    unknown = [c for c in args.cases if not any(n.startswith(c) for n in CASES)]
    if unknown:
        sys.exit(f"there is no case {', '.join(unknown)}; --list shows them")
    if os.geteuid() != 0:
        sys.exit("needs root: it makes network namespaces (sudo bench/lan/run.py ...)")
    missing = [tool for tool in ("ip", "cc", "taskset") if not shutil.which(tool)]
    if missing:
        sys.exit(f"{', '.join(missing)} not found: install iproute2, a C compiler and util-linux")
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(s, on_signal)
    signal.alarm(args.limit)
    before = {r["name"]: r for r in json.loads(Path(args.before).read_text())} if args.before else {}
    b = Bench(args)
    results, failures = [], []
    try:
        for name in chosen:
            start, load_before = time.monotonic(), os.getloadavg()[0]
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                for result in CASES[name][1](b):
                    results.append(result)
                    print(f"  {result.what}: {number(result.value)} {result.unit} ({result.note})", file=sys.stderr, flush=True)
            except (Failed, OSError, KeyError, ValueError, StopIteration, subprocess.SubprocessError) as e:
                failures.append((name, str(e) or repr(e)))
                print(f"  not measured: {e}", file=sys.stderr, flush=True)
            print(f"  {time.monotonic() - start:.0f} s, load average before {load_before:.1f}", file=sys.stderr, flush=True)
    finally:
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        print(f"{when}, {os.cpu_count()} processors, medians of {args.repetitions}, {args.gen} tokens a repetition\n")
        table(results, before)
        for name, why in failures:
            print(f"\nnot measured: {name}: {why}")
        if args.json:
            Path(args.json).write_text(json.dumps([{**vars(r), "reached": r.reached()} for r in results], indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
