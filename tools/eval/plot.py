#!/usr/bin/env python3
"""Draws what tokenbutler-eval measured, and writes its tables into a page.

  plot.py --kl kl-*.json --tasks ruler-*.json --images docs/images --page docs/quality.md

Tables go between the page's markers `<!-- measured: NAME -->` and `<!-- end -->`, NAME being kl, or a task's name (coref,
ruler, longbench, aime: what `evaluation` says in its result). A table there with the same heading is replaced, tables of other
models, contexts and titles stay. A result's fact `title` (--fact title=intervals) stands in its heading and in its images'
names. Images: for each result of kl, divergence against budget, prediction interval and bytes
moved, and, without a title, what each layer and KV head of some settings attends to; for each result of a task, its score
against the same. Needs matplotlib (bench/requirements.txt) unless --images is left out.
"""

import argparse
import json
import os
import pathlib
import re
import sys

KL_CAPTION = (
    "*What this does not show: whether a task is still solved. The divergence is a mean over the last tokens of running text, "
    "most of which need nothing from far away; a setting may pass here and lose the one token that a question is about.*")
TASK_CAPTION = (
    "*What this does not show: other tasks, other models, and differences that n samples cannot tell: those whose interval "
    "holds 0 are ties.*")
# Options that are varied along an axis: a line of a plot is what is left of a setting's name without them.
VARIED = {"token_budget": (), "interval": ("interval",), "moved_bytes": ("interval", "candidates", "scan", "neighbours")}


def load(path):
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"plot.py: {path} is no JSON: {error}") from None
    if not isinstance(result, dict) or "evaluation" not in result:
        raise SystemExit(f"plot.py: {path} is no result of tokenbutler-eval: it has no 'evaluation'")
    return result


def short_name(result):
    """smollm2-135m-instruct of SmolLM2-135M-Instruct.Q4_1.gguf."""
    return re.sub(r"(\.Q\w+)?\.gguf$", "", result["model"]).lower()


def size_name(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def subject(result):
    """What a table is about; --fact title=intervals tells several of one model and context apart."""
    parts = [short_name(result), size_name(result["context_len"]), result.get("title")]
    return ", ".join(part for part in parts if part)


def file_name(result):
    return re.sub(r"[^a-z0-9.]+", "-", f"{result['evaluation']} {subject(result)}".lower())


def machine_line(result):
    facts = [result["cpu"], f"{result['threads']} thread" + ("s" if result["threads"] > 1 else ""), result["kernel_target"], result["dtype"]]
    if "date" in result:
        facts.insert(0, result["date"])
    facts.append(f"version {result['version']}" + (f", commit {result['commit']}" if "commit" in result else ""))
    return ", ".join(facts)


def markdown_table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def between(low, high, digits):
    return "-" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"


def kilobytes(value):
    return "-" if value is None else f"{value / 1e3:.0f}"


def setting_name(row):
    """With the predictor's file, when there is one, without its digest."""
    predictor = row.get("predictor")
    return f"{row['setting']} ({predictor.split('@')[0]})" if predictor else row["setting"]


def kl_table(result):
    rows = []
    for row in sorted(result["rows"], key=lambda row: (row["token_budget"], row["mean_kl"])):
        verdict = {"tie": "tie", None: ""}.get(row["vs_exact"], row["vs_exact"])
        rows.append([
            str(row["token_budget"]), setting_name(row), number(row["mean_kl"], 4), between(row["kl_low"], row["kl_high"], 4),
            "-" if row["over_exact"] is None else
            f"{row['over_exact']:.2f} ({between(row['over_exact_low'], row['over_exact_high'], 2)})", verdict,
            f"{100 * row['same_top']:.1f} %", f"{row['perplexity_ratio']:.4f}", row["vs_dense"],
            number(row["mass_recall"], 3), number(row["overlap"], 3), number(row["attended_tokens"], 0),
            kilobytes(row["read_bytes"]), kilobytes(row["moved_bytes"]), str(row["documents"])])
    text = (f"**{subject(result)}** ({machine_line(result)}): the last {result['scored_tokens']} of "
            f"{result['context_len']} tokens of each text, sink {result['sink_tokens']}, local window {result['local_window']}. "
            f"Intervals: {result['intervals']}.\n\n")
    return text + markdown_table(
        ["budget", "setting", "KL to dense", "95 %", "/ exact (95 %)", "against exact", "same top token", "perplexity / dense", "against dense",
         "mass recalled", "overlap with exact", "attended", "KB read", "KB moved", "texts"], rows) + "\n\n" + KL_CAPTION


# Beside a task's score, where answers are forced.
FORCED_COLUMNS = {"token_score": "per token", "generated_score": "generated", "coverage_mean": "evidence, mean head",
                  "coverage_any": "evidence, any head", "coverage_mass": "evidence, by mass"}


def percent(value):
    return "-" if value is None else f"{100 * value:.1f}"


def tasks_of(result):
    return list(dict.fromkeys(row["task"] for row in result["rows"]))


def score_matrix(result):
    """The score of each setting in each task."""
    tasks = tasks_of(result)
    scores = {}
    for row in result["rows"]:
        scores.setdefault((str(row["token_budget"] or "-"), setting_name(row)), {})[row["task"]] = percent(row["score"])
    return markdown_table(["budget", "setting", *tasks],
                          [[*key, *(of_tasks.get(task, "-") for task in tasks)] for key, of_tasks in scores.items()])


def task_table(result):
    """All that is known of a task; of several tasks the average, and their scores."""
    has_average = "average" in tasks_of(result)
    shown = [row for row in result["rows"] if not has_average or row["task"] == "average"]
    forced = {column: title for column, title in FORCED_COLUMNS.items() if any(column in row for row in shown)}
    rows = []
    for row in shown:
        difference, low, high = (row[name] for name in ("minus_dense", "minus_dense_low", "minus_dense_high"))
        score = "-" if row["score"] is None else f"{percent(row['score'])} ({between(100 * row['score_low'], 100 * row['score_high'], 1)})"
        rows.append([row["task"], str(row["token_budget"] or "-"), setting_name(row), score,
                     "-" if difference is None else f"{100 * difference:+.1f} ({between(100 * low, 100 * high, 1)})",
                     row["vs_dense"] or "-", row["vs_exact"] or "-", *(percent(row.get(column)) for column in forced), number(row["attended_tokens"], 0),
                     kilobytes(row["read_bytes"]), kilobytes(row["moved_bytes"]), str(row["samples"])])
    text = (f"**{subject(result)}, {result['question']}** ({machine_line(result)}), sink "
            f"{result['sink_tokens']}, local window {result['local_window']}, blocks of {result['block_size']} tokens, seed {result['seed']}. Intervals: {result['intervals']}.")
    if result["too_hard_for_the_model"]:
        text += (f" Dense attention scores less than {100 * result['min_dense_score']:.0f} in {', '.join(result['too_hard_for_the_model'])}: "
                 "left out of averages.")
    return text + "\n\n" + markdown_table(
        ["task", "budget", "setting", "score (95 %)", "minus dense (95 %)", "against dense", "against exact", *forced.values(), "attended", "KB read",
         "KB moved", "n"], rows) + "\n\n" + (f"{score_matrix(result)}\n\n" if has_average else "") + TASK_CAPTION


def without_options(setting, options):
    name, _, assignments = setting.partition(":")
    kept = [assignment for assignment in assignments.split(",") if assignment and assignment.split("=")[0] not in options]
    return f"{name}:{','.join(kept)}" if kept else name


def without_model(name, result):
    """tokenbutler (lookahead) of tokenbutler (small-1b-lookahead.safetensors): legends are narrow."""
    return name.replace(f"{short_name(result)}-", "").replace(".safetensors", "")


def lines_of(rows, axis):
    """{name: rows in the order of `axis`}, of settings and budgets where something is varied along it."""
    lines = {}
    for row in rows:
        if row.get(axis) is None or row["setting"] == "dense":
            continue
        name = setting_name({**row, "setting": without_options(row["setting"], VARIED[axis])})
        if axis != "token_budget":
            name += f" ({row['token_budget']})"
        lines.setdefault(name, []).append(row)
    lines = {name: sorted(rows, key=lambda row: row[axis]) for name, rows in lines.items()}
    if axis == "moved_bytes":
        return lines
    return {name: rows for name, rows in lines.items() if len({row[axis] for row in rows}) > 1}


AXES = {"token_budget": "token budget", "interval": "prediction interval", "moved_bytes": "bytes moved to the device tier a token"}


def draw_lines(pyplot, result, rows, value, low, high, label, path):
    """One plot for each axis along which something is varied; None when there is none."""
    axes_with_lines = {axis: lines_of(rows, axis) for axis in AXES}
    axes_with_lines = {axis: lines for axis, lines in axes_with_lines.items() if lines}
    if not axes_with_lines:
        return None
    figure, axes = pyplot.subplots(1, len(axes_with_lines), figsize=(8.5 * len(axes_with_lines), 5), squeeze=False)
    names = sorted({name for lines in axes_with_lines.values() for name in lines})
    colours = {name: pyplot.get_cmap("tab20")(i % 20) for i, name in enumerate(names)}
    for axis, (column, lines) in zip(axes[0], axes_with_lines.items()):
        for i, (name, line) in enumerate(sorted(lines.items())):
            style = ["-o", "--s", ":^", "-.v"][i % 4]
            values = [row[value] for row in line]
            error = [[max(0, row[value] - row[low]) for row in line], [max(0, row[high] - row[value]) for row in line]]
            axis.errorbar([row[column] for row in line], values, yerr=error, fmt=style, color=colours[name], capsize=2,
                          markersize=4, linewidth=1, label=without_model(name, result))
        dense = [row for row in rows if row["setting"] == "dense"]
        if dense and value == "score":
            axis.axhline(dense[0][value], color="k", linewidth=1, label="dense")
        axis.set(xscale="log", xlabel=AXES[column], ylabel=label)
        if value == "mean_kl":
            axis.set_yscale("log")
        ticks = sorted({row[column] for line in lines.values() for row in line})
        if column != "moved_bytes":
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(subject(result))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def draw_heads(pyplot, result, settings, path):
    """What each layer and KV head attends to: the mass that it recalls, and its overlap with exact."""
    if "title" in result:  # a part of what another result of this model and context shows
        return None
    shown = [heads for heads in result.get("heads", []) if heads["setting"] in settings and any(heads["count"])]
    budget = max((heads["token_budget"] for heads in shown), default=None)
    shown = [heads for heads in shown if heads["token_budget"] == budget]
    if not shown:
        return None
    layers, kv_heads = result["num_layers"], result["num_kv_heads"]
    figure, axes = pyplot.subplots(2, len(shown), figsize=(2.2 * len(shown) + 1.5, 9), squeeze=False)
    for column, heads in enumerate(shown):
        for row, (name, title) in enumerate((("mass", "mass recalled"), ("overlap", "overlap with exact"))):
            values = [float("nan") if value is None else value for value in heads[name]]
            grid = [values[layer * kv_heads:(layer + 1) * kv_heads] for layer in range(layers)]
            image = axes[row][column].imshow(grid, vmin=0, vmax=1, aspect="auto", interpolation="nearest", cmap="viridis")
            axes[row][column].set_title(f"{setting_name(heads)}\n{title}", fontsize=7)
            axes[row][column].set_xlabel("KV head", fontsize=7)
            axes[row][column].set_ylabel("layer", fontsize=7)
            axes[row][column].set_xticks(range(kv_heads))
    figure.suptitle(f"{subject(result)}, budget {budget}", fontsize=9)
    figure.tight_layout()
    figure.colorbar(image, ax=axes, shrink=0.5)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def draw(result, head_settings, folder):
    """The images of one result: [(title, path)]."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / file_name(result)
    if result["evaluation"] == "kl":
        images = [("Divergence", draw_lines(pyplot, result, result["rows"], "mean_kl", "kl_low", "kl_high",
                                            "mean KL to dense, nats", base.with_name(f"{base.name}.png"))),
                  ("Layers and heads", draw_heads(pyplot, result, head_settings, base.with_name(f"{base.name}-heads.png")))]
    else:
        images = []
        tasks = tasks_of(result)
        for task in ["average"] if "average" in tasks else tasks:
            rows = [row for row in result["rows"] if row["task"] == task and row["score"] is not None]
            name = re.sub(r"\W+", "-", f"{base.name}-{result['question']}-{task}") + ".png"
            images.append((f"{task}, {result['question']}", draw_lines(
                pyplot, result, rows, "score", "score_low", "score_high", f"score: {task}", base.with_name(name))))
    return [(title, path) for title, path in images if path is not None]


def heading(table):
    """What `table` is about, when it is one of ours: the bold words that it begins with."""
    found = re.match(r"\*\*(.+?)\*\* \(", table)
    return found[1] if found else None


def with_tables(section, tables):
    """The tables of a page's section, those with the headings of `tables` replaced, and what is new behind them."""
    kept = [table.strip() for table in re.split(r"^(?=\*\*.+?\*\* \()", section, flags=re.MULTILINE)]
    merged = {heading(table): table for table in kept if heading(table)}
    merged.update({heading(table): table for table in tables})
    return "\n\n".join(merged.values())


def put_between_markers(page, name, tables):
    pattern = re.compile(rf"(<!-- measured: {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda match: match[1] + with_tables(match[2], tables) + "\n" + match[3], page)
    if count != 1:
        raise SystemExit(f"the page has {count} places '<!-- measured: {name} --> ... <!-- end -->', must have 1")
    return changed


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kl", type=pathlib.Path, nargs="*", default=[], help="results of tokenbutler-eval kl")
    parser.add_argument("--tasks", type=pathlib.Path, nargs="*", default=[], help="results of its other subcommands")
    parser.add_argument("--images", type=pathlib.Path, help="folder for the images (default: none are drawn)")
    parser.add_argument("--page", type=pathlib.Path, help="Markdown page that gets the tables (default: printed)")
    parser.add_argument("--head-settings", nargs="*", default=["exact", "sketch", "tokenbutler", "pca", "quest", "streaming_llm"],
                        help="settings whose layers and heads are drawn, at the largest budget")
    options = parser.parse_args()
    if not options.kl and not options.tasks:
        parser.error("there are no results: give --kl or --tasks")
    return options


def main():
    options = parse_options()
    sections = {}
    for path in options.kl + options.tasks:
        result = load(path)
        try:
            table = kl_table(result) if result["evaluation"] == "kl" else task_table(result)
            images = draw(result, options.head_settings, options.images) if options.images else []
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise SystemExit(f"plot.py: {path} is no whole result of tokenbutler-eval: {type(error).__name__}: {error}") from error
        if options.page:
            folder = os.path.relpath(options.images, options.page.parent) if options.images else ""
            table += "".join(f"\n\n![{title}]({folder}/{image.name})" for title, image in images)
        sections.setdefault(result["evaluation"], []).append(table)
    if not options.page:
        print("\n\n".join(table for tables in sections.values() for table in tables))
        return
    page = options.page.read_text(encoding="utf-8")
    for name, tables in sections.items():
        page = put_between_markers(page, name, tables)
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as problem:
        sys.exit(f"plot.py: {problem}")
