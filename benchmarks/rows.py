"""Measuring two things against each other in one run, alternating, and printing the ratio of their medians."""

import statistics
import subprocess
import sys
import time


def seconds(call):
    """How long the call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alternate(ours, peer, rounds):
    """Times both calls `rounds` times, one after the other."""
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return [ours for ours, _ in pairs], [peer for _, peer in pairs]


def header(title, unit="s"):
    """Prints the head of a table."""
    print(f"{title:<58} {'ours/' + unit:>10} {'peer/' + unit:>10} {'ratio':>8}", flush=True)


def row(what, ours, peer, scale=1.0):
    """Prints the medians and their ratio: below 1 ours takes less."""
    ours, peer = statistics.median(ours) * scale, statistics.median(peer) * scale
    print(f"{what:<58} {ours:10.3f} {peer:10.3f} {ours / peer:8.3f}", flush=True)


def python(*arguments):
    """A call that runs this Python with the arguments, quietly."""
    return lambda: subprocess.run([sys.executable, "-W", "ignore", *arguments], check=True, stdout=subprocess.DEVNULL)


def figure(what, value, unit, limit=""):
    """One measured value, and what it is to be."""
    print(f"{what:<66} {value:10.3f} {unit:<3} {limit}", flush=True)
