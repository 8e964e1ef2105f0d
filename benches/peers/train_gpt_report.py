#!/usr/bin/env python3
"""Tables in Markdown and a chart of what train_gpt.py has measured.

    python benches/peers/train_gpt_report.py
    python benches/peers/train_gpt_report.py --records out/peers/muons.json out/peers/adamws.json
    python benches/peers/train_gpt_report.py --chart docs/peers-train-gpt.png --page docs/peers.md
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from markdown import Sections, machine_lines, publish
from worker import REPOSITORY

TITLES = {
    "dmuon_muon_bf16": "dmuon, Muon, bf16 products",
    "dmuon_muon": "dmuon, Muon, f32",
    "dmuon_adamw": "dmuon, AdamW",
    "fsdp_muon": "FSDP2, gathering Muon",
    "fsdp_dion": "FSDP2, Dion's Muon",
    "fsdp_adamw": "FSDP2, AdamW",
}

# Compilation, first touches of memory, lazily created state.
WARM_UP_STEPS = 1


@dataclass(frozen=True)
class Result:
    """Medians over the steps that count."""

    name: str
    tokens_per_s: float
    seconds: float
    optimizer_seconds: float
    losses: list[float]

    @staticmethod
    def of(name: str, steps: list[dict[str, float]], tokens: int) -> "Result":
        counted = steps[WARM_UP_STEPS:]
        seconds = statistics.median(step["seconds"] for step in counted)
        optimizer = statistics.median(step["optimizer_seconds"] for step in counted)
        losses = [step["loss"] for step in steps]
        return Result(name, tokens / seconds, seconds, optimizer, losses)

    @property
    def adamw(self) -> str:
        """The contender with AdamW in the same framework."""
        return f"{self.name.partition('_')[0]}_adamw"


Results = dict[str, Result]


@dataclass(frozen=True)
class Run:
    """Contenders that took turns; only they are compared."""

    results: Results
    machine: dict[str, Any]
    settings: dict[str, Any]
    busy_cores: list[float]

    @staticmethod
    def read(path: Path) -> "Run":
        record = json.loads(path.read_text())
        settings, steps = record["settings"], record["steps"]
        tokens = tokens_per_step(settings)
        results = {name: Result.of(name, steps[name], tokens) for name in TITLES if name in steps}
        busy = [step["busy_cores"] for name in steps for step in steps[name]]
        return Run(results, record["machine"], settings, busy)


def speed_table(results: Results) -> Iterator[str]:
    yield "| | tokens/s | beside its own AdamW | step, s | forward and backward, s | optimizer, s |"
    yield "|---|---:|---:|---:|---:|---:|"
    for result in results.values():
        own = results.get(result.adamw)
        share = f"{result.tokens_per_s / own.tokens_per_s:.0%}" if own else "–"
        rest = result.seconds - result.optimizer_seconds
        yield (
            f"| {TITLES[result.name]} | {result.tokens_per_s:.0f} | {share} | {result.seconds:.2f} | "
            f"{rest:.2f} | {result.optimizer_seconds:.3f} |"
        )


def goals_table(results: Results) -> Iterator[str]:
    muons = [results[name] for name in ("dmuon_muon_bf16", "dmuon_muon") if name in results]
    yield f"| goal | measured | {' | '.join(TITLES[ours.name] for ours in muons)} |"
    yield "|---|---" + "|---:" * len(muons) + "|"
    for peer, factor in (("fsdp_muon", 2.0), ("fsdp_dion", 1.4)):
        if peer in results:
            ratios = [ours.tokens_per_s / results[peer].tokens_per_s for ours in muons]
            cells = " | ".join(verdict(ratio, ratio >= factor) for ratio in ratios)
            yield f"| at least {factor} | tokens/s over {TITLES[peer]} | {cells} |"
    if dion := results.get("fsdp_dion"):
        ratios = [ours.optimizer_seconds / dion.optimizer_seconds for ours in muons]
        cells = " | ".join(verdict(ratio, ratio <= 0.5) for ratio in ratios)
        yield f"| at most 0.5 | optimizer seconds over {TITLES[dion.name]} | {cells} |"


def verdict(ratio: float, is_met: bool) -> str:
    return f"{ratio:.2f} {'met' if is_met else '**missed**'}"


def losses_table(results: Results) -> Iterator[str]:
    steps = range(1, 1 + max(len(result.losses) for result in results.values()))
    yield f"| step | {' | '.join(map(str, steps))} |"
    yield "|---" + "|---:" * len(steps) + "|"
    for result in results.values():
        yield f"| {TITLES[result.name]} | {' | '.join(f'{loss:.5f}' for loss in result.losses)} |"


def draw(runs: list[Run], path: Path) -> None:
    """Seconds of a step, the optimizer's apart; a panel for each run."""
    matplotlib.use("agg")
    heights = [0.5 * len(run.results) + 0.6 for run in runs]
    figure, panels = plt.subplots(
        len(runs), figsize=(9, sum(heights) + 1), layout="constrained", squeeze=False, sharex=True,
        height_ratios=heights,
    )
    for run, panel in zip(runs, panels[:, 0], strict=True):
        bars(run.results, panel)
    longest = max(result.seconds for run in runs for result in run.results.values())
    first, last = panels[0, 0], panels[-1, 0]
    first.set_xlim(0, 1.2 * longest)
    first.legend(fontsize=9, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    settings, about = runs[0].settings, runs[0].machine
    last.set_xlabel(
        f"seconds a step of {tokens_per_step(settings)} tokens, {settings['ranks']} ranks; "
        f"{about['cpu']}, torch {about['torch']}", fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def bars(results: Results, panel: plt.Axes) -> None:
    shown = list(reversed(results.values()))
    names = [TITLES[result.name] for result in shown]
    rest = [result.seconds - result.optimizer_seconds for result in shown]
    optimizer = [result.optimizer_seconds for result in shown]
    panel.barh(names, rest, color="#93c5fd", label="forward and backward")
    panel.barh(names, optimizer, left=rest, color="#c2410c", label="optimizer")
    for row, result in enumerate(shown):
        panel.text(result.seconds, row, f" {result.tokens_per_s:.0f} tokens/s", va="center", fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def tokens_per_step(settings: dict[str, Any]) -> int:
    return int(settings["ranks"]) * int(settings["batch"]) * int(settings["seq_len"])


def main() -> None:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = REPOSITORY / "out/peers"
    parser.add_argument("--records", type=Path, nargs="+", default=[out / "train_gpt.json"],
                        metavar="FILE", help="what train_gpt.py wrote, a file for each run")
    parser.add_argument("--chart", type=Path, default=out / "train_gpt.png", metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="Markdown page whose marked tables are replaced")
    args = parser.parse_args()
    runs = [Run.read(path) for path in args.records]
    draw(runs, args.chart)
    busy = [busy for run in runs for busy in run.busy_cores]
    sections: Sections = {"Machine": machine_lines(runs[0].machine, busy)}
    for number, run in enumerate(runs, 1):
        mark = f", run {number}" if len(runs) > 1 else ""
        sections[f"Speed{mark}"] = speed_table(run.results)
        if {"fsdp_muon", "fsdp_dion"} & run.results.keys():
            sections[f"Goals{mark}"] = goals_table(run.results)
        sections[f"Losses{mark}"] = losses_table(run.results)
    publish(sections, args.page, "train_gpt")


if __name__ == "__main__":
    main()
