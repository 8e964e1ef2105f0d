#!/usr/bin/env python3
"""Time dmuon's Newton–Schulz beside what a PyTorch user would call, in one run.

Contenders, on the same matrices with the same number of threads:

  dmuon_f32             this repository, every product in f32
  dmuon_bf16_products   this repository, factors rounded to bfloat16, sums in f32
  torch_muon            the function torch.optim.Muon calls, in bfloat16
  torch_gram_highest    Gram Newton–Schulz in torch operations, f32, products by torch's BLAS
  torch_gram_medium     the same, products by oneDNN (see below)

They take turns, so that whatever else the machine does hits all alike; medians count. Each result
is compared with the same quintics on an f64 singular value decomposition, and the script fails if
one of ours is off.

MKL, the BLAS of most torch builds, is not at its best on processors that aren't Intel's; oneDNN need
not be slow there, so Gram is timed with both. torch.set_float32_matmul_precision("medium") chooses
oneDNN, which uses bfloat16 on CPUs with matrix units for it and f32 elsewhere: the recorded errors
tell which.

    pip install torch numpy matplotlib     (torch_cpu.py helps machines without CUDA)
    python benches/peers/newton_schulz.py
    python benches/peers/newton_schulz.py --shapes 1x1024x1024 --threads 1

What is measured replaces older figures of the same shape and thread count in --out, so that a long
measurement can be split. newton_schulz_report.py makes tables and a chart of that file.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from machine import facts, wait_until_idle
from newton_schulz_contenders import Contender, Dmuon, Quintics, TorchGram, TorchMuon
from worker import REPOSITORY, build_example

SHAPES = [
    "1x512x512", "1x1024x1024", "1x2048x2048", "1x1024x4096", "1x768x3072", "8x512x2048",
    "74x24x10240",
]

# Largest error of ours, relative in the Frobenius norm, for Gaussian matrices.
TOLERANCES = {"dmuon_f32": 5e-4, "dmuon_bf16_products": 5e-2}

# Between runs: longer than idle OpenMP threads spin, so that nobody's wait slows the next.
PAUSE_S = 0.02

# Of every turn, and at least one run.
WARM_UP_S = 0.1

MIN_ROUNDS, MAX_ROUNDS = 5, 25


class Oracle:
    """Singular value decompositions in f64, and what quintics make of them."""

    def __init__(self, matrices: Tensor) -> None:
        self._u, sigma, self._vt = torch.linalg.svd(matrices.double(), full_matrices=False)
        self._sigma = sigma / sigma.norm(dim=-1, keepdim=True)

    def error(self, contender: Contender) -> float:
        """Of its last run, relative in the Frobenius norm; of a batch, the worst."""
        exact = self._map(contender.quintics)
        difference = contender.result().double() - exact
        return float((difference.norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))).max())

    def _map(self, quintics: Quintics) -> Tensor:
        """`U p(Σ / ‖X‖) Vᵀ`, `p` being the composition of the quintics."""
        sigma = self._sigma
        for a, b, c in quintics:
            sigma = a * sigma + b * sigma**3 + c * sigma**5
        return (self._u * sigma.unsqueeze(-2)) @ self._vt


def warm_up(contender: Contender) -> None:
    end = time.monotonic() + WARM_UP_S
    contender.run()
    while time.monotonic() < end:
        contender.run()


def take_turns(contenders: list[Contender], args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each run of each contender, round by round until the time is up.

    A turn is some runs, of which the last counts: threads that have slept through the others' turns
    may all wake on one core, and stay there for the length of a small run.
    """
    seconds: dict[str, list[float]] = {contender.key: [] for contender in contenders}
    # Cores that other programs used before each round and after the last.
    busy = [wait_until_idle(args.patience)]
    spent = 0.0
    while len(busy) <= MIN_ROUNDS or (spent < args.seconds and len(busy) <= MAX_ROUNDS):
        started = time.monotonic()
        for contender in contenders:
            time.sleep(PAUSE_S)
            warm_up(contender)
            seconds[contender.key].append(contender.run())
        spent += time.monotonic() - started
        busy.append(wait_until_idle(args.patience))
    return {"seconds": seconds, "busy_cores": busy}


def measure(
    contenders: list[Contender], shape: tuple[int, ...], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """The records of one shape, one for each number of threads."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    oracle = Oracle(matrices) if args.check else None
    records = []
    for threads in args.threads:
        for contender in contenders:
            contender.set_up(matrices, threads)
        in_force = {c.key: c.in_force for c in contenders if c.in_force}
        record: dict[str, Any] = {"shape": list(shape), "threads": threads, "in_force": in_force}
        record |= take_turns(contenders, args)
        if oracle is not None:
            record["errors"] = {c.key: oracle.error(c) for c in contenders}
        records.append(record)
    return records


def save(path: Path, records: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Adds the records to the file, in place of older ones of the same case."""
    older = json.loads(path.read_text())["records"] if path.exists() else []
    cases = [(record["shape"], record["threads"]) for record in records]
    kept = [record for record in older if (record["shape"], record["threads"]) not in cases]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": about, "records": kept + records}, indent=1) + "\n")


def tell(record: dict[str, Any]) -> None:
    shape = "x".join(map(str, record["shape"]))
    rounds = len(record["seconds"]["torch_muon"])
    busy = max(record["busy_cores"])
    print(f"{shape}, {record['threads']} threads, {rounds} rounds; others used {busy} cores at most")
    for key, seconds in record["seconds"].items():
        median = sorted(seconds)[len(seconds) // 2]
        error = f"  error {record['errors'][key]:.1e}" if "errors" in record else ""
        how = f"  {record['in_force'][key]}" if key in record["in_force"] else ""
        print(f"  {key:20} {1e3 * median:9.2f} ms{error}{how}", flush=True)


def off_target(records: list[dict[str, Any]]) -> list[str]:
    return [
        f"{key} is {record['errors'][key]:.1e} off at {record['shape']}, {limit:.0e} allowed"
        for record in records if "errors" in record
        for key, limit in TOLERANCES.items() if not record["errors"][key] <= limit
    ]


def shape(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in text.split("x") if size.isdigit())
    if len(sizes) != 3 or 0 in sizes:
        raise argparse.ArgumentTypeError(f"{text} is not BATCHxROWSxCOLS, as in {SHAPES[0]}")
    return sizes


def parse_arguments() -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", nargs="+", type=shape, metavar="BxMxN", default=[shape(s) for s in SHAPES],
        help=f"batch, rows, columns (default {' '.join(SHAPES)})",
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, metavar="N", default=[1, 2],
        help="for each contender (default 1, then 2)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20, metavar="S",
        help=f"for each case, but at least {MIN_ROUNDS} rounds (default %(default)s)",
    )
    parser.add_argument(
        "--patience", type=float, default=20, metavar="S",
        help="how long each round waits for other programs to end (default %(default)s)",
    )
    parser.add_argument(
        "--no-check", dest="check", action="store_false",
        help="skip the f64 decompositions, which take up to half a minute a shape",
    )
    parser.add_argument(
        "--worker", type=Path, metavar="PROGRAM",
        help="a built newton_schulz_worker (default: cargo builds it)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=REPOSITORY / "out/peers/newton_schulz.json",
        help="(default out/peers/newton_schulz.json)",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    program = args.worker or build_example("dmuon-core", "newton_schulz_worker")
    about = facts(args.threads)
    print(json.dumps(about, indent=1))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        # Ours and theirs alternate.
        contenders = [
            Dmuon(program, "f32", Path(folder)),
            TorchMuon(),
            TorchGram("highest"),
            Dmuon(program, "bf16_products", Path(folder)),
            TorchGram("medium"),
        ]
        faults = []
        for shape in args.shapes:
            records = measure(contenders, shape, args)
            for record in records:
                tell(record)
            save(args.out, records, about)
            faults += off_target(records)
    print(f"records: {args.out}")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
