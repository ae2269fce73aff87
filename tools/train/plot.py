#!/usr/bin/env python3
"""Draws a training run of tokenbutler-train: loss and validations, learning rate, and the divergence of each layer.

  plot.py FOLDER/log.jsonl --output curves.png

Losses are KL(teacher || student) of the attention in nats, mean over positions, heads and layers. Needs matplotlib
(bench/requirements.txt); scripts/train-report installs it.
"""

import argparse
import json
import pathlib
import sys

PARTS = {"early": "predicted queries", "late": "own queries"}


def read_log(path):
    """{"run": {...}, "steps": [...], "validations": [...]} of the lines of a log; one that was cut off is left out."""
    run, steps, validations = {}, [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(event, dict) or "type" not in event:
            raise SystemExit(f"{path} is no log of tokenbutler-train: a line has no 'type'")
        if event["type"] == "run":
            run = event
        else:
            (steps if event["type"] == "step" else validations).append(event)
    if not validations:
        raise SystemExit(f"{path} holds no validation yet")
    return {"run": run, "steps": steps, "validations": validations}


def smooth(values, width):
    """Means over the last `width` values."""
    return [sum(values[max(0, i - width + 1):i + 1]) / min(i + 1, width) for i in range(len(values))]


def table_of(validations, part):
    """(layers, [[loss at each validation] for each layer]) of those that have the part."""
    layers = [layer for layer, loss in zip(validations[-1]["layers"], validations[-1][part]) if loss is not None]
    rows = [[v[part][v["layers"].index(layer)] for v in validations] for layer in layers]
    return layers, rows


def draw_losses(axes, log):
    steps, validations = log["steps"], log["validations"]
    if steps:
        numbers, losses = [e["step"] for e in steps], [e["loss"] for e in steps]
        axes.plot(numbers, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="steps")
        axes.plot(numbers, smooth(losses, max(1, len(losses) // 50)), color="tab:blue", label="steps, smoothed")
    axes.plot([e["step"] for e in validations], [e["loss"] for e in validations], "o-", color="tab:orange", markersize=3,
              label="validation")
    best = min(validations, key=lambda e: e["loss"])
    axes.annotate(f"{best['loss']:.4f}", (best["step"], best["loss"]), textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set(title="Loss", xlabel="step", ylabel="nats", yscale="log")
    axes.legend()


def draw_rates(axes, log):
    steps = log["steps"]
    axes.plot([e["step"] for e in steps], [e["learning_rate"] for e in steps], color="tab:green")
    axes.set(title="Learning rate and norm of the gradients", xlabel="step", ylabel="learning rate")
    other = axes.twinx()
    other.plot([e["step"] for e in steps], [e["gradient_norm"] for e in steps], color="tab:gray", alpha=0.5, linewidth=0.8)
    other.set(ylabel="norm before clipping", yscale="log")


def draw_layers(axes, log, part):
    layers, rows = table_of(log["validations"], part)
    numbers = [e["step"] for e in log["validations"]]
    image = axes.imshow(rows, aspect="auto", cmap="viridis", interpolation="nearest")
    ticks = range(0, len(numbers), max(1, len(numbers) // 6))
    axes.set_xticks(list(ticks), [str(numbers[i]) for i in ticks])
    ticks = range(0, len(layers), max(1, len(layers) // 12))
    axes.set_yticks(list(ticks), [str(layers[i]) for i in ticks])
    axes.set(title=f"{PARTS[part].capitalize()}: validation by layer, nats", xlabel="step", ylabel="layer")
    axes.figure.colorbar(image, ax=axes)


def draw(log, path):
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    parts = [part for part in PARTS if table_of(log["validations"], part)[0]]
    figure, axes = pyplot.subplots(1, 2 + len(parts), figsize=(6 * (2 + len(parts)), 5))
    draw_losses(axes[0], log)
    draw_rates(axes[1], log)
    for place, part in zip(axes[2:], parts):
        draw_layers(place, log, part)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=pathlib.Path, help="log.jsonl of a run's folder")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the image, .png")
    options = parser.parse_args()
    try:
        draw(read_log(options.log), options.output)
    except OSError as error:
        raise SystemExit(f"plot.py: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"plot.py: {options.log} is no log of tokenbutler-train: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
