#!/usr/bin/env python3
"""Times gloo's collectives as `cargo bench -p dmuon-hccl --bench collectives` times ours.

Prints the median milliseconds of every request as one line of JSON. Every rank is a process with one
compute thread; a collective lasts from a barrier until everybody has the result.
"""

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def milliseconds(collective: str, mebibytes: int, warm_ups: int, runs: int) -> float:
    buffer = torch.ones(mebibytes << 18)
    times = []
    for run in range(warm_ups + runs):
        dist.barrier()
        start = time.perf_counter()
        match collective:
            case "broadcast":
                dist.broadcast(buffer, 0)
            case "reduce":
                dist.reduce(buffer, 0)
            case "all_reduce":
                dist.all_reduce(buffer)
        dist.barrier()
        if run >= warm_ups:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def run_rank(rank: int, ranks: int, port: int, requests: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    cases, (warm_ups, runs) = json.loads(requests)
    times = [milliseconds(collective, size, warm_ups, runs) for collective, size in cases]
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="(default %(default)s)")
    parser.add_argument("--requests", required=True, metavar="JSON",
                        help='for instance [[["broadcast", 1]], [2, 7]]: name and MiB; warm-ups, runs')
    args = parser.parse_args()
    processes.spawn(run_rank, (args.ranks, free_port(), args.requests), nprocs=args.ranks)


if __name__ == "__main__":
    main()
