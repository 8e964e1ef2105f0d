#!/usr/bin/env python3
"""Times dmuon's passes over a parameter beside torch's fused AdamW and the memory's own speed, in turns.

Every pass runs over one long vector of float32 on one thread, the copy also on two. Bytes count
every vector read and every vector written once.

    python benches/peers/passes.py
    python benches/peers/passes.py --page docs/peers.md
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from machine import wait_until_idle
from markdown import Sections, publish
from worker import Worker, build_example

# Vectors read and written, and elements a second follow from it.
NUM_VECTORS = {
    "copy": 2, "copy, 2 threads": 2, "dmuon momentum": 4, "dmuon AdamW": 7, "torch AdamW, fused": 7,
}


def torch_adamw(num_elems: int) -> Callable[[], float]:
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.randn(num_elems))
    weight.grad = 1e-3 * torch.randn(num_elems)
    optimizer = torch.optim.AdamW([weight], betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def run() -> float:
        started = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - started

    return run


def contenders(program: Path, num_elems: int) -> dict[str, Callable[[], float]]:
    alone, pair = (Worker([str(program), str(num_elems), threads]) for threads in ("1", "2"))
    return {
        "copy": lambda: alone.ask("copy"),
        "copy, 2 threads": lambda: pair.ask("copy"),
        "dmuon momentum": lambda: alone.ask("momentum"),
        "dmuon AdamW": lambda: alone.ask("adamw"),
        "torch AdamW, fused": torch_adamw(num_elems),
    }


def table(seconds: dict[str, list[float]], num_elems: int) -> Iterator[str]:
    yield "| pass | milliseconds | GB/s |"
    yield "|---|---:|---:|"
    for name, runs in seconds.items():
        median = statistics.median(runs)
        gigabytes = NUM_VECTORS[name] * 4 * num_elems / 1e9
        yield f"| {name} | {1e3 * median:.1f} | {gigabytes / median:.1f} |"


def main() -> None:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=18_186_240,
                        help="(default %(default)s, which is 74 x 24 x 10240)")
    parser.add_argument("--rounds", type=int, default=15, help="(default %(default)s)")
    parser.add_argument("--worker", type=Path, metavar="PROGRAM",
                        help="a built passes_worker (default: cargo builds it)")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="Markdown page whose marked table is replaced")
    args = parser.parse_args()
    runs = contenders(args.worker or build_example("dmuon-core", "passes_worker"), args.elements)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(args.rounds + 1):
        wait_until_idle(10)
        for name, run in runs.items():
            run()
            taken = run()
            # The first round touches memory for the first time.
            if round_ > 0:
                seconds[name].append(taken)
    sections: Sections = {f"Passes over {args.elements:,} elements": table(seconds, args.elements)}
    publish(sections, args.page, "passes")


if __name__ == "__main__":
    main()
