"""Who orthogonalizes: dmuon in a worker process, torch in this one, each behind one `run`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import _muon

from worker import Worker

Quintics = Sequence[tuple[float, float, float]]

# arXiv 2505.16932, divided by 1.05, 1.05³ and 1.05⁵: what dmuon applies by default.
POLAR_EXPRESS: Quintics = [
    (a / 1.05, b / 1.05**3, c / 1.05**5)
    for a, b, c in [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    ]
]

# What torch.optim.Muon applies by default.
TORCH_MUON = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)


class Contender(ABC):
    """Orthogonalizes one batch of matrices, again and again."""

    # In the records.
    key: str
    # One (a, b, c) a step: σ ← aσ + bσ³ + cσ⁵.
    quintics: Quintics
    # Form, precision and kernel of the case that is set up, where the program chooses.
    in_force: str | None = None

    @abstractmethod
    def set_up(self, input: Tensor, threads: int) -> None:
        """Gets ready for `input`, `[batch, rows, cols]` in f32."""

    @abstractmethod
    def run(self) -> float:
        """Orthogonalizes once, and returns the seconds it took."""

    @abstractmethod
    def result(self) -> Tensor:
        """Of the last run, `[batch, rows, cols]`."""


class Dmuon(Contender):
    """This repository's Newton–Schulz on the host."""

    quintics = POLAR_EXPRESS

    def __init__(self, program: Path, precision: str, folder: Path) -> None:
        self.key = f"dmuon_{precision}"
        self._program, self._precision = program, precision
        self._worker: Worker | None = None
        self._input, self._out = folder / f"{self.key}.in", folder / f"{self.key}.out"
        self._shape: list[int] = []

    def set_up(self, input: Tensor, threads: int) -> None:
        self._shape = list(input.shape)
        self._input.write_bytes(input.numpy().tobytes())
        if self._worker is not None:
            self._worker.close()
        self._worker = Worker([str(self._program), str(threads)])
        case = {
            "input": str(self._input), "shape": self._shape, "precision": self._precision,
        }
        answer = self._ask({"case": case})
        self.in_force = ", ".join(answer.values())

    def run(self) -> float:
        return float(self._ask("run")["seconds"])

    def result(self) -> Tensor:
        self._ask({"write": str(self._out)})
        values = torch.frombuffer(bytearray(self._out.read_bytes()), dtype=torch.float32)
        return values.view(self._shape)

    def _ask(self, request: Any) -> Any:
        assert self._worker is not None, "set_up comes first"
        return self._worker.ask(request)


class InTorch(Contender):
    """Anything that runs in this very process."""

    def set_up(self, input: Tensor, threads: int) -> None:
        self._input, self._threads = input, threads

    def run(self) -> float:
        torch.set_num_threads(self._threads)
        started = time.perf_counter()
        self._out = self.orthogonalize(self._input)
        return time.perf_counter() - started

    def result(self) -> Tensor:
        return torch.stack([matrix.float() for matrix in self._out])

    @abstractmethod
    def orthogonalize(self, input: Tensor) -> Iterable[Tensor]:
        """One matrix for each of the batch."""


class TorchMuon(InTorch):
    """The function that `torch.optim.Muon` itself calls, once for each matrix, in bfloat16."""

    key = "torch_muon"
    quintics = [TORCH_MUON] * _muon.DEFAULT_NS_STEPS

    def orthogonalize(self, input: Tensor) -> Iterable[Tensor]:
        steps, eps = _muon.DEFAULT_NS_STEPS, _muon.EPS
        return [_muon._zeropower_via_newtonschulz(m, TORCH_MUON, steps, eps) for m in input]


class TorchGram(InTorch):
    """Gram Newton–Schulz in torch's own operations, in f32: what dmuon computes, without its kernels.

    `matmul` is torch's `float32_matmul_precision`. With "highest", the default, products go to the
    BLAS; with "medium" they go to oneDNN, which uses bfloat16 on CPUs with matrix units for it, and
    f32 elsewhere.
    """

    quintics = POLAR_EXPRESS

    def __init__(self, matmul: str) -> None:
        self.key = f"torch_gram_{matmul}"
        self._matmul = matmul

    def run(self) -> float:
        torch.set_float32_matmul_precision(self._matmul)
        seconds = super().run()
        torch.set_float32_matmul_precision("highest")
        return seconds

    def orthogonalize(self, input: Tensor) -> Iterable[Tensor]:
        x = input.mT if input.size(-2) > input.size(-1) else input
        x = x / x.norm(dim=(-2, -1), keepdim=True)
        x = gram(x[0])[None] if len(x) == 1 else gram(x)
        return x.mT if input.size(-2) > input.size(-1) else x


def gram(x: Tensor) -> Tensor:
    """Polar Express on `x`, `[m, n]` or `[batch, m, n]` with m ≤ n and a norm of 1."""
    fused = torch.addmm if x.ndim == 2 else torch.baddbmm
    r, q = x @ x.mT, None
    for step, (a, b, c) in enumerate(POLAR_EXPRESS):
        z = fused(r, r, r, beta=b, alpha=c)
        if q is None:
            q = z.clone()
            q.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            q = fused(q, z, q, beta=a)
        if step + 1 < len(POLAR_EXPRESS):
            t = fused(r, r, z, beta=a)
            r = fused(t, t, z, beta=a)
    assert q is not None
    return q @ x
