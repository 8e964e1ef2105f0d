#!/usr/bin/env python3
"""Tables in Markdown and a chart of what train_gpt.py has measured.

    python benches/peers/train_gpt_report.py
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


def draw(results: Results, about: dict[str, Any], settings: dict[str, Any], path: Path) -> None:
    """Seconds of a step, the optimizer's apart."""
    matplotlib.use("agg")
    figure, panel = plt.subplots(figsize=(9, 0.6 * len(results) + 1.6), layout="constrained")
    shown = list(reversed(results.values()))
    names = [TITLES[result.name] for result in shown]
    rest = [result.seconds - result.optimizer_seconds for result in shown]
    optimizer = [result.optimizer_seconds for result in shown]
    panel.barh(names, rest, color="#93c5fd", label="forward and backward")
    panel.barh(names, optimizer, left=rest, color="#c2410c", label="optimizer")
    for row, result in enumerate(shown):
        panel.text(result.seconds, row, f" {result.tokens_per_s:.0f} tokens/s", va="center", fontsize=9)
    panel.set_xlim(0, 1.2 * max(result.seconds for result in shown))
    panel.set_xlabel(
        f"seconds a step of {tokens_per_step(settings)} tokens, {settings['ranks']} ranks; "
        f"{about['cpu']}, torch {about['torch']}", fontsize=9,
    )
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=9, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def tokens_per_step(settings: dict[str, Any]) -> int:
    return int(settings["ranks"]) * int(settings["batch"]) * int(settings["seq_len"])


def main() -> None:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = REPOSITORY / "out/peers"
    parser.add_argument("--records", type=Path, default=out / "train_gpt.json", metavar="FILE")
    parser.add_argument("--chart", type=Path, default=out / "train_gpt.png", metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="Markdown page whose marked tables are replaced")
    args = parser.parse_args()
    record = json.loads(args.records.read_text())
    settings, steps = record["settings"], record["steps"]
    tokens = tokens_per_step(settings)
    results = {name: Result.of(name, steps[name], tokens) for name in TITLES if name in steps}
    draw(results, record["machine"], settings, args.chart)
    busy = [step["busy_cores"] for name in steps for step in steps[name]]
    sections: Sections = {
        "Machine": machine_lines(record["machine"], busy),
        "Speed": speed_table(results),
        "Goals": goals_table(results),
        "Losses": losses_table(results),
    }
    publish(sections, args.page, "train_gpt")


if __name__ == "__main__":
    main()
