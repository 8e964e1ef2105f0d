"""What timings depend on: the processor, torch, its libraries, and the rate of a plain product."""

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch

# They change which kernels torch's libraries choose.
VARIABLES = ["LD_PRELOAD", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA"]


def facts(thread_counts: list[int]) -> dict[str, Any]:
    config = torch.__config__.show()
    lines = [line.strip(" -") for line in config.splitlines()]
    libraries = [line for line in lines if re.match(r"Intel|CPU capability|OpenMP", line)]
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    return {
        "cpu": cpu(),
        "torch": torch.__version__,
        "blas": blas[1] if blas else "unknown",
        "libraries": libraries,
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "gemm_gflops": {str(threads): gemm_gflops(threads) for threads in thread_counts},
    }


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = re.findall(r"^model name\s*: (.*)$", text, re.M)
    if not names:
        return f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    family = re.search(r"^cpu family\s*: (\d+)$", text, re.M)
    model = re.search(r"^model\s*: (\d+)$", text, re.M)
    numbers = f" (family {family[1]}, model {model[1]})" if family and model else ""
    return f"{len(names)} x {names[0]}{numbers}"


def available_bytes() -> float:
    """Memory that programs may still take; infinite where it can't be told."""
    info = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", info.read_text(), re.M) if info.exists() else None
    return int(found[1]) * 1024 if found else float("inf")


def wait_until_idle(patience_s: float, limit: float = 0.1) -> float:
    """Sleeps until other programs leave the cores alone, or patience ends; cores they still use."""
    end = time.monotonic() + patience_s
    while (busy := busy_cores(0.2)) is not None and busy > limit and time.monotonic() < end:
        time.sleep(0.5)
    return busy or 0.0


def busy_cores(seconds: float) -> float | None:
    """How many cores other programs keep busy while this one sleeps; `None` where it can't tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    before = cpu_seconds(stat)
    time.sleep(seconds)
    return round((cpu_seconds(stat) - before) / seconds, 2)


def cpu_seconds(stat: Path) -> float:
    """Of all cores, since the machine started: user, nice, system, interrupts, stolen."""
    ticks = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def gemm_gflops(threads: int, size: int = 1024) -> dict[str, int]:
    """Best of some runs of a square product, f32 in torch's two settings and bfloat16."""
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    return {
        "f32_highest": rate(a, b, "highest"),
        "f32_medium": rate(a, b, "medium"),
        "bf16": rate(a.bfloat16(), b.bfloat16(), "highest"),
    }


def rate(a: torch.Tensor, b: torch.Tensor, matmul: str) -> int:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - started)
    torch.set_float32_matmul_precision(before)
    return round(2 * a.shape[0] * a.shape[1] * b.shape[1] / min(seconds) / 1e9)
