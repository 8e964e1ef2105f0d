"""One rank of a PyTorch run: FSDP2 over gloo, a step whenever it is told to.

train_gpt.py starts one process for each rank. The first line of standard input is the setup as
JSON; every further line asks for one step and is answered with its loss and times.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from train_gpt_model import Gpt


@dataclass(frozen=True)
class Setup:
    """What to train, and how."""

    # Arguments of Gpt.
    model: dict[str, int]
    ranks: int
    batch: int
    optimizer: str
    # Whether weights are gathered again for the backward.
    reshard: bool
    # Whether torch.compile compiles the blocks.
    compile: bool
    lr: float
    # See torch.set_float32_matmul_precision.
    matmul: str
    tokens: str
    weights: str
    # A checkout of microsoft/dion.
    dion: str | None


class Steps(Protocol):
    def step(self) -> Any: ...


def adamw(parameters: list[torch.nn.Parameter], setup: Setup, weight_decay: float) -> Steps:
    return torch.optim.AdamW(
        parameters, setup.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay, fused=True
    )


class GatheringMuon:
    """`torch.optim.Muon` on gathered gradients: each rank orthogonalizes every matrix."""

    def __init__(self, model: Gpt, setup: Setup, mesh: DeviceMesh) -> None:
        # Parameters that are DTensors.
        self._shards: list[Any] = list(model.matrices())
        self._whole = [shard.full_tensor().detach().clone() for shard in self._shards]
        self._rank, self._ranks = mesh.get_local_rank(), mesh.size()
        self._muon = torch.optim.Muon(
            self._whole, setup.lr, weight_decay=0.1, momentum=0.95, nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = adamw(model.others(), setup, weight_decay=0.0)

    @torch.no_grad()
    def step(self) -> None:
        for whole, shard in zip(self._whole, self._shards):
            whole.grad = shard.grad.full_tensor()
        self._muon.step()
        for whole, shard in zip(self._whole, self._shards):
            shard.to_local().copy_(whole.chunk(self._ranks)[self._rank])
            whole.grad = None
        self._adamw.step()


def dion_muon(model: Gpt, setup: Setup, mesh: DeviceMesh) -> Steps:
    """microsoft/dion's Muon: ranks exchange shards, and each orthogonalizes its share."""
    assert setup.dion is not None
    sys.path.insert(0, setup.dion)
    from dion import Muon  # type: ignore[import-not-found]

    groups = [
        {"params": model.matrices()},
        {"params": model.others(), "algorithm": "adamw", "weight_decay": 0.0},
    ]
    return Muon(
        groups, distributed_mesh=mesh, lr=setup.lr, mu=0.95, betas=(0.9, 0.95), weight_decay=0.1,
        epsilon=1e-8, nesterov=True, adjust_lr="rms_norm",
    )


def build_optimizer(model: Gpt, setup: Setup, mesh: DeviceMesh) -> Steps:
    match setup.optimizer:
        case "adamw":
            return adamw(list(model.parameters()), setup, weight_decay=0.1)
        case "muon":
            return GatheringMuon(model, setup, mesh)
        case "dion":
            return dion_muon(model, setup, mesh)
        case other:
            raise ValueError(f"no optimizer {other}")


def build_model(setup: Setup, mesh: DeviceMesh) -> Gpt:
    model = Gpt(**setup.model)
    model.load(Path(setup.weights))
    for layer in model.layers:
        if setup.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh, reshard_after_forward=setup.reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=setup.reshard)
    return model


class Tokens:
    """Batches cut by train_gpt.py: bytes, `[steps, ranks, batch, seq_len + 1]`."""

    def __init__(self, setup: Setup) -> None:
        content = bytearray(Path(setup.tokens).read_bytes())
        shape = (-1, setup.ranks, setup.batch, setup.model["seq_len"] + 1)
        self._bytes = torch.frombuffer(content, dtype=torch.uint8).view(shape)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        sequences = self._bytes[step % len(self._bytes), rank].long()
        return sequences[:, :-1], sequences[:, 1:]


def train(setup: Setup) -> None:
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (setup.ranks,))
    model = build_model(setup, mesh)
    optimizer = build_optimizer(model, setup, mesh)
    tokens = Tokens(setup)
    say("ready")
    for step, _ in enumerate(sys.stdin):
        started = time.perf_counter()
        loss = model(*tokens.batch(step, rank))
        loss.backward()
        # The sum makes ranks wait for each other: what follows is the optimizer's alone.
        total = loss.detach()
        dist.all_reduce(total)
        backward = time.perf_counter()
        optimizer.step()
        model.zero_grad()
        ended = time.perf_counter()
        say({
            "loss": total.item() / setup.ranks,
            "seconds": ended - started,
            "optimizer_seconds": ended - backward,
        })
    dist.destroy_process_group()


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    setup = Setup(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_float32_matmul_precision(setup.matmul)
    train(setup)


if __name__ == "__main__":
    main()
