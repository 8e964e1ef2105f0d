#!/usr/bin/env python3
"""Tables in Markdown and a chart of what train_gpt.py has measured.

    python benches/peers/train_gpt_report.py
    python benches/peers/train_gpt_report.py --records out/peers/train_gpt.json \\
        --chart docs/peers-train-gpt.png > table.md
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

from worker import REPOSITORY

TITLES = {
    "dmuon_muon": "dmuon, Muon",
    "dmuon_adamw": "dmuon, AdamW",
    "fsdp_muon": "FSDP2, gathering Muon",
    "fsdp_dion": "FSDP2, Dion's Muon",
    "fsdp_adamw": "FSDP2, AdamW",
}

# Compilation, first touches of memory, lazily created state.
WARM_UP_STEPS = 2


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
    yield "| goal | measured | |"
    yield "|---|---:|---|"
    ours = results.get("dmuon_muon")
    for peer, factor in (("fsdp_muon", 2.0), ("fsdp_dion", 1.4)):
        if ours and peer in results:
            ratio = ours.tokens_per_s / results[peer].tokens_per_s
            verdict = "met" if ratio >= factor else "**missed**"
            yield f"| {factor}× the tokens/s of {TITLES[peer]} | {ratio:.2f}× | {verdict} |"
    if ours and "fsdp_dion" in results:
        ratio = ours.optimizer_seconds / results["fsdp_dion"].optimizer_seconds
        verdict = "met" if ratio <= 0.5 else "**missed**"
        yield f"| an optimizer phase of at most 0.5 of Dion's | {ratio:.2f} | {verdict} |"


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
    args = parser.parse_args()
    record = json.loads(args.records.read_text())
    settings, steps = record["settings"], record["steps"]
    tokens = tokens_per_step(settings)
    results = {name: Result.of(name, steps[name], tokens) for name in TITLES if name in steps}
    draw(results, record["machine"], settings, args.chart)
    sections = {
        "Speed": speed_table(results),
        "Goals": goals_table(results),
        "Losses": losses_table(results),
    }
    for title, lines in sections.items():
        print(f"**{title}**", "", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
