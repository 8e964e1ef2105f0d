#!/usr/bin/env python3
"""Train one small GPT with dmuon and with PyTorch FSDP2, step by step in turn, and time both.

Contenders, each on the same number of ranks and the same batches from the same weights:

  dmuon_muon       this repository: matrices owned, orthogonalized once, in f32; the rest sharded,
                   AdamW; ranks are threads
  dmuon_muon_bf16  the same, Newton–Schulz with bf16 products, as both peers have it
  dmuon_adamw      the same owners and traffic with Burn's AdamW
  fsdp_muon        FSDP2 over gloo, torch.optim.Muon on gathered gradients, AdamW for the rest
  fsdp_dion        FSDP2 over gloo, microsoft/dion's Muon (all-to-all), AdamW; needs --dion
  fsdp_adamw       FSDP2 over gloo, torch's fused AdamW

All contenders live at once, so that they can take turns; where memory is short, time some of them at a
time (--only, --out) and give the report all records.

A torch rank is a process with one compute thread. dmuon's ranks are threads that share one pool of
as many threads as there are cores, as they do by default. No contender runs while another one does.
The optimizer's seconds count from when the last rank has its gradients; of the ranks the slowest
counts.

All losses are printed. Before the first update they must agree to rounding, and the script fails if
they don't; afterwards each optimizer goes its own way (Muon's peers use other coefficients, and
bfloat16), but AdamW's must stay together.

    git clone https://github.com/microsoft/dion target/dion
    python benches/peers/train_gpt.py --dion target/dion
    python benches/peers/train_gpt.py --only dmuon_muon fsdp_muon --steps 4 --out out/peers/two.json

train_gpt_report.py makes tables and a chart of --out.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import available_bytes, facts, wait_until_idle
from worker import REPOSITORY, Worker, build_example

CONTENDERS = [
    "dmuon_muon_bf16", "fsdp_muon", "dmuon_muon", "fsdp_dion", "dmuon_adamw", "fsdp_adamw",
]

# Of the first loss, over all contenders: sums in f32 in different orders.
FIRST_LOSS_TOLERANCE = 1e-5

# Of the last loss, between the two AdamWs: its first steps are signs, which rounding can turn.
ADAMW_LOSS_TOLERANCE = 1e-3

# What one contender had at most, of four ranks and the default model, with some room.
CONTENDER_BYTES = 5.5e9

RANK = Path(__file__).with_name("train_gpt_rank.py")


class Dmuon:
    """Our side: one process, one thread a rank."""

    def __init__(self, program: Path, setup: dict[str, Any]) -> None:
        self._worker = Worker([str(program)])
        self._worker.send(setup)

    def wait(self) -> None:
        self._worker.receive()

    def step(self) -> dict[str, float]:
        return self._worker.ask("step")


class Fsdp:
    """Their side: one process a rank."""

    def __init__(self, ranks: int, setup: dict[str, Any]) -> None:
        port = free_port()
        self._ranks = [
            Worker([sys.executable, str(RANK)], rank_environment(rank, ranks, port))
            for rank in range(ranks)
        ]
        for rank in self._ranks:
            rank.send(setup)

    def wait(self) -> None:
        for rank in self._ranks:
            rank.receive()

    def step(self) -> dict[str, float]:
        for rank in self._ranks:
            rank.send("step")
        answers = [rank.receive() for rank in self._ranks]
        return {key: max(answer[key] for answer in answers) for key in answers[0]}


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def text(path: Path | None) -> bytes:
    """What to learn: a file, or the Rust sources of this repository."""
    if path is not None:
        return path.read_bytes()
    command = ["git", "ls-files", "-z", "*.rs"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True).stdout
    names = sorted(name for name in listed.decode().split("\0") if name)
    return b"".join((REPOSITORY / name).read_bytes() for name in names)


def cut_batches(content: bytes, args: argparse.Namespace) -> bytes:
    """Sequences from random places: `[steps, ranks, batch, seq_len + 1]`."""
    length = args.seq_len + 1
    draw = random.Random(args.seed)
    starts = [
        draw.randrange(len(content) - length) for _ in range(args.steps * args.ranks * args.batch)
    ]
    return b"".join(content[start:start + length] for start in starts)


def start(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Dmuon | Fsdp]]:
    """Contenders by name, one after the other; dmuon writes the weights that torch reads."""
    tokens, weights = folder / "tokens.bin", folder / "weights.safetensors"
    tokens.write_bytes(cut_batches(text(args.data), args))
    program = args.worker or build_example("dmuon", "train_gpt_worker")
    model = {key: getattr(args, key) for key in ("layers", "width", "heads", "seq_len")}
    common = {
        "model": model, "ranks": args.ranks, "batch": args.batch, "lr": args.lr,
        "tokens": str(tokens), "weights": str(weights),
    }
    ours = {**common, "mode": args.mode, "seed": args.seed}
    theirs = {
        **common, "reshard": args.mode == "z3", "compile": args.compile, "matmul": args.matmul,
        "dion": args.dion,
    }
    # Ours first: they write the weights.
    for name in sorted(args.only, key=lambda name: not name.startswith("dmuon")):
        side, _, optimizer = name.partition("_")
        setup = {**(ours if side == "dmuon" else theirs), "optimizer": optimizer}
        contender = Dmuon(program, setup) if side == "dmuon" else Fsdp(args.ranks, setup)
        contender.wait()
        yield name, contender


def take_turns(
    contenders: dict[str, Dmuon | Fsdp], args: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """Every step of every contender, one contender at a time."""
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in args.only}
    tokens = args.ranks * args.batch * args.seq_len
    for step in range(args.steps):
        for name in args.only:
            busy = wait_until_idle(args.patience)
            times = {**contenders[name].step(), "busy_cores": busy}
            steps[name].append(times)
            print(
                f"step {step + 1}  {name:15} loss {times['loss']:.6f}  {times['seconds']:6.2f} s  "
                f"optimizer {times['optimizer_seconds']:6.3f} s  "
                f"{tokens / times['seconds']:5.0f} tokens/s  others used {busy} cores",
                flush=True,
            )
    return steps


def disagreements(steps: dict[str, list[dict[str, float]]]) -> list[str]:
    first = {name: times[0]["loss"] for name, times in steps.items()}
    spread = max(first.values()) / min(first.values()) - 1
    print(f"first losses agree to {spread:.1e}")
    faults = []
    if spread > FIRST_LOSS_TOLERANCE:
        faults.append(f"first losses differ by {spread:.1e}: {first}")
    if {"dmuon_adamw", "fsdp_adamw"} <= steps.keys():
        ours, theirs = (steps[name][-1]["loss"] for name in ("dmuon_adamw", "fsdp_adamw"))
        gap = abs(ours / theirs - 1)
        print(f"last losses of the AdamWs agree to {gap:.1e}")
        if gap > ADAMW_LOSS_TOLERANCE:
            faults.append(f"the AdamWs' last losses differ by {gap:.1e}: {ours}, {theirs}")
    return faults


def parse_arguments() -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=CONTENDERS, metavar="NAME", default=CONTENDERS,
        help="contenders, in the order of their turns (default: all)")
    add("--dion", metavar="PATH", help="a checkout of github.com/microsoft/dion")
    add("--steps", type=int, default=5, help="the first does not count (default %(default)s)")
    add("--mode", choices=["z2", "z3"], default="z2",
        help="z2 keeps weights from forward to backward, z3 drops and fetches them again; "
             "torch: reshard_after_forward (default %(default)s)")
    add("--matmul", choices=["highest", "medium"], default="medium",
        help="torch's float32 products: the BLAS, or oneDNN, which is as exact on CPUs without "
             "matrix units and faster on AMD's (default %(default)s)")
    add("--compile", action="store_true", help="let torch.compile compile the blocks")
    add("--ranks", type=int, default=4, help="(default %(default)s)")
    add("--batch", type=int, default=8, help="sequences a rank and step (default %(default)s)")
    add("--seq-len", type=int, default=128, help="(default %(default)s)")
    add("--layers", type=int, default=8, help="(default %(default)s)")
    add("--width", type=int, default=512, help="(default %(default)s)")
    add("--heads", type=int, default=8, help="(default %(default)s)")
    add("--lr", type=float, default=1e-3, help="of all optimizers (default %(default)s)")
    add("--seed", type=int, default=1, help="(default %(default)s)")
    add("--patience", type=float, default=10, metavar="S",
        help="how long each step waits for other programs to end (default %(default)s)")
    add("--data", type=Path, metavar="FILE", help="(default: the Rust sources of this repository)")
    add("--worker", type=Path, metavar="PROGRAM",
        help="a built train_gpt_worker (default: cargo builds it)")
    add("--out", type=Path, metavar="FILE", default=REPOSITORY / "out/peers/train_gpt.json",
        help="(default out/peers/train_gpt.json)")
    args = parser.parse_args()
    if "fsdp_dion" in args.only and args.dion is None:
        parser.error("fsdp_dion needs --dion PATH; leave it out with --only")
    if (need := CONTENDER_BYTES * len(args.only)) > (free := available_bytes()):
        print(
            f"{len(args.only)} contenders of the default size need {need / 1e9:.0f} GB and {free / 1e9:.0f} GB "
            "are free: if the machine gets stuck, time fewer at once with --only", file=sys.stderr,
        )
    return args


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        contenders = dict(start(args, Path(folder)))
        steps = take_turns(contenders, args)
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "worker")}
    record = {"machine": facts([1, 2]), "settings": settings, "steps": steps}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(f"records: {args.out}")
    if faults := disagreements(steps):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
