"""Write docs/advise_record.md from the recorded predictions: ``make docs`` runs this."""

from pathlib import Path
from typing import Any

from gradmass.advice import track_record
from gradmass.commands.advise_tables import score_text

PAGE = Path(__file__).with_name("advise_record.md")
QUANTITIES = {
    "test/pass@1": "pass@1",
    "test/pass@100": "pass@100",
    "entropy/mean_nats": "token entropy",
    "rank/head_top1_share": "r_1",
}


def record_page() -> str:
    """The page with every prediction, what was measured, and the scores."""
    record = track_record()
    published = record["published"]
    parts = [
        "# Every prediction, and what was measured",
        "Written by `make docs` from `src/gradmass/advice/predictions/`; what the predictions are, "
        "and what follows: [advise.md](advise.md).",
        "A *hit*: the measured interval excludes 0 on the side predicted; a *miss*: on the other, "
        "or at all where no difference was predicted; *undecided*: it holds 0; *consistent*: it "
        "holds 0, and no difference was predicted.",
        "## Published comparisons, a look back",
        f"{published['num_comparisons']} comparisons of {published['num_sources']} sources. "
        f"{published['about']} Noise: {published['noise']}",
        *(f"**{name}**: {score_text(score)}." for name, score in published["scores"].items()),
        "\n".join(_published_rows(published["cells"])),
    ]
    for forecast in record["forecasts"]:
        parts += [
            f"## Forecasts: {forecast['name']}",
            f"Recorded {forecast['recorded']}. {forecast['about']}",
            f"Rule: {forecast['rule']}",
            f"Decided so: {forecast['decision']}",
            *(
                f"**{basis}**: {score_text(score)}."
                for basis, score in forecast["scores"].items()
                if score["num"]
            ),
            "\n".join(_forecast_rows(forecast)),
        ]
    return "\n\n".join(parts) + "\n"


def _published_rows(cells: list[dict[str, Any]]) -> list[str]:
    rows = [
        "| method, model | baseline | k | measured, points | predicted | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        half = (cell["high"] - cell["low"]) / 2
        note = f" ({cell['note']})" if cell["note"] else ""
        rows.append(
            f"| [{cell['id'].split('/')[0]}]({cell['source']}) `{cell['method']}`, "
            f"{cell['model']}{note} | `{cell['baseline']}` | {cell['k']} | "
            f"{cell['diff']:+.1f} ± {half:.1f} | {cell['predicted']} | {cell['outcome']} |"
        )
    return rows


def _forecast_rows(forecast: dict[str, Any]) -> list[str]:
    rows = [
        "| weight | quantity | basis | predicted | measured | runs | outcome |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in forecast["cells"]:
        rows.append(
            f"| `{cell['weight']}` | {QUANTITIES[cell['quantity']]} | {cell['basis']} | "
            f"{cell['predicted']} | {cell['difference']:+.4f} [{cell['low']:+.4f}, "
            f"{cell['high']:+.4f}] | {cell['experiment']}: {len(cell['seeds'])} seeds, step "
            f"{cell['step']} | {cell['outcome']} |"
        )
    waiting = forecast["waiting"]
    if waiting:
        rows += ["", f"Without an outcome yet: {len(waiting)} (`{'`, `'.join(waiting)}`)."]
    return rows


if __name__ == "__main__":
    PAGE.write_text(record_page())
    print(PAGE)
