#!/usr/bin/env python3
"""Draws the measurements of `tokenbutler-bench decode` and `tokenbutler-eval kl` (quality), and writes their tables into a page.

  plot.py --decode decode-*.json --quality quality-*.json --images docs/images --page docs/performance.md

Images: decode_vs_context.png (time per token against the context, for each setting, with dense and the floor that
the memory's measured bandwidth allows), frontier.png (divergence from dense against time per token at one
depth) and, of a run with --page, sweeps.png (time per token and divergence against interval, budget, candidates). Tables go between the page's markers `<!-- measured: NAME -->` and `<!-- end -->`, NAME being decode,
quality, link or peers. Settings of the two measurements are joined by name: a row of speed carries the divergence that the same
setting had, of the same model if it was measured, else of the one that was.
Needs matplotlib (bench/requirements.txt) unless --images is left out.
"""

import argparse
import collections
import functools
import itertools
import json
import os
import pathlib
import re
import sys


def load(paths):
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def short_name(result):
    """smollm2-135m-instruct of SmolLM2-135M-Instruct.Q4_1.gguf."""
    return re.sub(r"(\.Q\w+)?\.gguf$", "", result["model"]).lower()


def label(row, budgets):
    """A setting's name, with its budget when several were measured."""
    return row["setting"] if len(budgets) == 1 or row["setting"] == "dense" else f"{row['setting']} ({row['token_budget']})"


def budgets_of(rows):
    return {row["token_budget"] for row in rows if row["setting"] != "dense"}


def rows_of(result, *sweeps):
    """The rows of these of a run's sweeps; of a run without sweeps, all of them."""
    if len(result.get("sweeps", [])) < 2:
        return result["rows"] if "depth" in sweeps else []
    chosen = [sweep for sweep in result["sweeps"] if sweep["name"] in sweeps]
    return [row for row in result["rows"] if any(
        row["depth"] in sweep["depths"] and row["setting"] in sweep["settings"]
        and (row["setting"] == "dense" or row["token_budget"] in sweep["token_budgets"]) for sweep in chosen)]


def depth_name(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


class Divergences:
    """What `tokenbutler-eval kl` measured, by model and setting; at the smallest budget that it tried."""

    def __init__(self, results):
        self._of = {}
        for result in results:
            rows = self._of.setdefault(short_name(result), {})
            for row in sorted(result["rows"], key=lambda row: row["token_budget"]):
                rows.setdefault(row["setting"], row)

    def find(self, result, setting):
        """(row or None, whether it is of another model)"""
        own = self._of.get(short_name(result), {})
        if setting in own:
            return own[setting], False
        for rows in self._of.values():
            if setting in rows:
                return rows[setting], True
        return None, False

    def cell(self, result, setting):
        if setting == "dense":
            return "0"
        row, is_other = self.find(result, setting)
        if row is None:
            return "not measured"
        return f"{row['mean_kl']:.4f}{'*' if is_other else ''}"

    def recall_cell(self, result, setting):
        row, is_other = self.find(result, setting)
        if row is None or row["mass_recall"] is None:
            return "-"
        return f"{row['mass_recall']:.3f}{'*' if is_other else ''}"


def machine_line(result):
    facts = [result["cpu"], f"{result['threads']} thread" + ("s" if result["threads"] > 1 else ""), result["kernel_target"], result["dtype"]]
    if "date" in result:
        facts.insert(0, result["date"])
    if "commit" in result:
        facts.append(f"commit {result['commit']}")
    return ", ".join(facts)


def markdown_table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def milliseconds(value):
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def range_of(rows, field):
    """"37 to 77", or "42" where they agree."""
    low, high = (f"{pick(row[field] for row in rows):.0f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def share_cell(row):
    """How much of the context was looked at to choose, as it was counted; rows of earlier runs did not count."""
    return f"{row['scored_share']:.3g}" if "scored_share" in row else "-"


def decode_table(result, divergences, depths):
    measured = rows_of(result, "depth", "policy")
    budgets = budgets_of(measured)
    # Rows of a resumed run are in the order in which they were measured.
    order = [setting for sweep in result.get("sweeps", []) for setting in sweep["settings"]]
    place = {setting: order.index(setting) for setting in order}
    rows = []
    for row in sorted(measured, key=lambda row: (row["depth"], place.get(row["setting"], 0))):
        if row["depth"] not in depths:
            continue
        rows.append([depth_name(row["depth"]), label(row, budgets), milliseconds(row["ms_per_token"]),
                     milliseconds(row["p99_step_ms"]), f"{row['speedup']:.2f}", milliseconds(row["floor_ms"]),
                     f"{row['over_floor']:.2f}", f"{row['attended_tokens']:.0f}", share_cell(row),
                     divergences.recall_cell(result, row["setting"]), divergences.cell(result, row["setting"])])
    text = (f"**{short_name(result)}** ({machine_line(result)}). Memory read at {range_of(measured, 'read_gb_s')} GB/s, rows "
            f"gathered at {range_of(measured, 'gather_gb_s')} GB/s; budget {', '.join(map(str, sorted(budgets)))}; "
            f"RoPE scaling beyond the model's context: {result['rope_scaling']}.\n\n")
    return text + markdown_table(
        ["context", "setting", "ms a token", "p99 step, ms", "x dense", "floor, ms", "/ floor", "attended",
         "share of tokens scored", "mass recalled on text", "KL to dense on text"], rows)


SWEEPS = {"interval": "prediction interval", "token_budget": "token budget", "candidates": "candidates, budgets"}


def swept_value(row, sweep):
    return row["candidates"] / row["token_budget"] if sweep == "candidates" else row[sweep]


def without_options(setting, options):
    name, _, assignments = setting.partition(":")
    kept = [assignment for assignment in assignments.split(",") if assignment and assignment.split("=")[0] not in options]
    return f"{name}:{','.join(kept)}" if kept else name


def sweep_lines(result, sweep):
    """Of each policy or setting, its rows in the order of what is varied. What happens between two scans goes with the interval."""
    lines = {}
    for row in rows_of(result, sweep):
        varied = {"interval": ("interval", "scan", "candidates"), "candidates": ("candidates",)}.get(sweep, ())
        name = without_options(row["setting"], varied)
        lines.setdefault(name, []).append(row)
    return {name: sorted(rows, key=lambda row: swept_value(row, sweep)) for name, rows in lines.items()}


def sweeps_table(result, divergences):
    rows = []
    for sweep in SWEEPS:
        for line in sweep_lines(result, sweep).values():
            for row in line:
                # Divergence was measured at one budget.
                divergence = "-" if sweep == "token_budget" else divergences.cell(result, row["setting"])
                rows.append([SWEEPS[sweep], f"{swept_value(row, sweep):g}", row["setting"], depth_name(row["depth"]),
                             milliseconds(row["ms_per_token"]), milliseconds(row["p99_step_ms"]), f"{row['speedup']:.2f}",
                             milliseconds(row["floor_ms"]), divergence])
    if not rows:
        return ""
    return f"**{short_name(result)}**, one thing varied at a time.\n\n" + markdown_table(
        ["varied", "value", "setting", "context", "ms a token", "p99 step, ms", "x dense", "floor, ms", "KL to dense on text"], rows)


def quality_table(result):
    rows = []
    for row in sorted(result["rows"], key=lambda row: row["mean_kl"]):
        over_exact = "-" if row["over_exact"] is None else f"{row['over_exact']:.2f}"
        recall = "-" if row["mass_recall"] is None else f"{row['mass_recall']:.3f}"
        rows.append([row["setting"], str(row["token_budget"]),
                     f"{row['mean_kl']:.4f}", f"{row['kl_low']:.4f} to {row['kl_high']:.4f}", over_exact,
                     f"{100 * row['same_top']:.1f} %", f"{row['perplexity_ratio']:.4f}", recall,
                     str(row["documents"])])
    text = (f"**{short_name(result)}** ({machine_line(result)}), {result['context_len']} tokens of context, the last "
            f"{result['scored_tokens']} scored, sink {result['sink_tokens']}, local window {result['local_window']}.\n\n")
    return text + markdown_table(["setting", "budget", "KL to dense", "95 %", "/ exact", "same top token", "perplexity / dense",
                            "mass recalled", "texts"], rows)


def link_table(result):
    rows = []
    for row in result["rows"]:
        rows.append([row["setting"], row["misses"], str(row["token_budget"]), f"{100 * row['hit_rate']:.1f} %",
                     f"{100 * row['sent_ahead']:.0f} %", f"{row['kb_per_token']:.0f}", f"{row['modelled_device_gb']:.1f}",
                     f"{row['modelled_mb']:.1f}", f"{row['modelled_link_ms']:.2f}", f"{row['modelled_stall_ms']:.2f}",
                     f"{100 * row['modelled_stall_share']:.1f} %", f"{row['mean_kl']:.4f}"])
    text = (f"**{short_name(result)}** ({machine_line(result)}), {result['context_len']} tokens of context, the last "
            f"{result['decoded_tokens']} decoded, {result['rows'][0]['documents']} texts, room for "
            f"{result['selections_kept']} selections. *Modelled*: {result['modelled']}.\n\n")
    return text + markdown_table(
        ["setting", "misses", "budget", "hits", "sent ahead", "KB a token, this model", "*modelled* device tier, GB", "*modelled* MB a token",
         "*modelled* link, ms", "*modelled* stall, ms", "*modelled* stall / step", "KL to dense"], rows)


def peers_table(result):
    settings = [name[:-3] for name in result["rows"][0] if name.endswith("_ms") and name != "llama_ms"]
    rows = []
    for row in result["rows"]:
        cells = [depth_name(row["depth"]), milliseconds(row["llama_ms"]) + (" (filled)" if row["llama"] == "filled" else "")]
        for setting in settings:
            cells += [milliseconds(row[f"{setting}_ms"]), f"{row[f'llama_over_{setting}']:.1f}"]
        rows.append(cells)
    header = ["context", "llama.cpp, ms"]
    for setting in settings:
        header += [f"{setting}, ms", "llama.cpp / " + setting]
    measured = ", ".join([*([result["date"]] if "date" in result else []), result["cpu"], f"{result['threads']} threads"])
    text = (f"**{short_name(result)}** ({measured}), llama-cpp-python {result['llama_cpp_python']}, "
            f"f16 KV cache, a file of {result['llama_file_bytes'] / 1e6:.0f} MB; ours {result['ours_dtype']}, "
            f"{result['ours_weight_bytes'] / 1e6:.0f} MB of weights, budget {result['token_budget']}.\n\n")
    return text + markdown_table(header, rows)


def replace_between_markers(page, name, text):
    pattern = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda match: match[1] + text + "\n" + match[2], page)
    if count != 1:
        raise SystemExit(f"the page has {count} places '<!-- measured: {name} --> ... <!-- end -->', must have 1")
    return changed


STYLES = {"dense": "k-o", "quality": "C0-o", "fast": "C3-o"}
OTHER_COLOURS = ["C1", "C2", "C4", "C5", "C6", "C7", "C8", "C9", "olive", "navy", "teal", "salmon"]


def draw_decode(pyplot, results, path):
    figure, axes = pyplot.subplots(1, len(results), figsize=(7.5 * len(results), 6), squeeze=False)
    # A setting has one colour in all panels.
    colours = collections.defaultdict(functools.partial(next, itertools.cycle(OTHER_COLOURS)))
    for axis, result in zip(axes[0], results):
        measured = rows_of(result, "depth", "policy")
        budgets = budgets_of(measured)
        curves = {}
        for row in measured:
            curves.setdefault(label(row, budgets), []).append(row)
        for name, rows in curves.items():
            rows.sort(key=lambda row: row["depth"])
            depths = [row["depth"] for row in rows]
            style = [STYLES[rows[0]["setting"]]] if rows[0]["setting"] in STYLES else ["--s"]
            colour = {} if rows[0]["setting"] in STYLES else {"color": colours[name]}
            line, = axis.plot(depths, [row["ms_per_token"] for row in rows], *style, label=name, markersize=4, **colour)
            if rows[0]["setting"] in STYLES:
                axis.plot(depths, [row["floor_ms"] for row in rows], ":", color=line.get_color(), label=f"{name}: floor")
        axis.set(xscale="log", yscale="log", xlabel="tokens in the KV cache", ylabel="ms per token",
                 title=f"{short_name(result)}\n{machine_line(result)}")
        ticks = sorted({row["depth"] for row in measured})
        axis.set_xticks(ticks, [depth_name(depth) for depth in ticks])
        axis.minorticks_off()
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def label_offsets(points, char=5, height=9):
    """Where the label of each (x, y, text) goes, in points from it: beside it, or above or below what is there already.

    Takes and gives points of 1/72 inch; `char` and `height` are a letter's.
    """
    placed, offsets = [], {}
    for index in sorted(range(len(points)), key=lambda i: points[i][:2]):
        x, y, text = points[index]
        for lines in (0, -1, 1, -2, 2, -3, 3):
            left, bottom = x + 5, y + 4 + lines * height
            box = (left, bottom, left + char * len(text), bottom + height)
            if all(box[0] >= b[2] or b[0] >= box[2] or box[1] >= b[3] or b[1] >= box[3] for b in placed):
                break
        placed.append(box)
        offsets[index] = (5, 4 + lines * height)
    return [offsets[index] for index in range(len(points))]


def draw_frontier(pyplot, results, divergences, depth, path):
    figure, axes = pyplot.subplots(1, len(results), figsize=(7.5 * len(results), 6), squeeze=False)
    for axis, result in zip(axes[0], results):
        measured = rows_of(result, "depth", "policy", "interval", "candidates")
        budgets = budgets_of(measured)
        depths = {row["depth"] for row in measured}
        shown = depth if depth in depths else max(depths)
        named = []
        for row in measured:
            if row["depth"] != shown:
                continue
            if row["setting"] == "dense":
                axis.axvline(row["ms_per_token"], color="k")
                continue
            quality, is_other = divergences.find(result, row["setting"])
            if quality is None:
                continue
            kl = quality["mean_kl"]
            error = [[max(kl - quality["kl_low"], 0)], [max(quality["kl_high"] - kl, 0)]]
            if ":" in row["setting"]:  # what is swept, without names: they would hide one another
                axis.errorbar(row["ms_per_token"], kl, yerr=error, fmt=".", color="0.7", capsize=1, linewidth=0.7, zorder=1)
                continue
            axis.errorbar(row["ms_per_token"], kl, yerr=error, fmt="s" if is_other else "o", capsize=2)
            named.append((row["ms_per_token"], kl, label(row, budgets)))
        axis.set(xscale="log", yscale="log", xlabel=f"ms per token at {depth_name(shown)} (line: dense)", ylabel="mean KL to dense, nats",
                 title=f"{short_name(result)}\n{machine_line(result)}")
        axis.grid(True, which="both", alpha=0.3)
        to_points = 72 / figure.dpi
        places = [(*(axis.transData.transform((ms, kl)) * to_points), text) for ms, kl, text in named]
        for (ms, kl, text), offset in zip(named, label_offsets(places)):
            axis.annotate(text, (ms, kl), textcoords="offset points", xytext=offset, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_sweeps(pyplot, results, divergences, path):
    figure, axes = pyplot.subplots(len(results), len(SWEEPS), figsize=(4.5 * len(SWEEPS), 3.5 * len(results)), squeeze=False)
    for result, row_of_axes in zip(results, axes):
        for sweep, axis in zip(SWEEPS, row_of_axes):
            for name, rows in sweep_lines(result, sweep).items():
                values = [swept_value(row, sweep) for row in rows]
                line, = axis.plot(values, [row["ms_per_token"] for row in rows], "-o", markersize=4, label=name)
                axis.plot(values, [row["floor_ms"] for row in rows], ":", color=line.get_color(), label=f"{name}: floor")
                if sweep == "token_budget":
                    continue
                found = [(value, divergences.find(result, row["setting"])[0]) for value, row in zip(values, rows)]
                found = [(value, quality["mean_kl"]) for value, quality in found if quality is not None]
                if found:
                    right = axis.twinx()
                    right.plot(*zip(*found), "x--", color="C3")
                    right.set(yscale="log", ylabel="mean KL to dense (x)")
            axis.set(xscale="log", xlabel=SWEEPS[sweep], ylabel="ms per token", title=short_name(result))
            ticks = sorted({swept_value(row, sweep) for row in rows_of(result, sweep)})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw(results, divergences, depth, folder):
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    folder.mkdir(parents=True, exist_ok=True)
    draw_decode(pyplot, results, folder / "decode_vs_context.png")
    draw_frontier(pyplot, results, divergences, depth, folder / "frontier.png")
    swept = [result for result in results if rows_of(result, *SWEEPS)]
    if swept:
        draw_sweeps(pyplot, swept, divergences, folder / "sweeps.png")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", type=pathlib.Path, nargs="+", required=True, help="results of `decode`, one per model")
    parser.add_argument("--quality", type=pathlib.Path, nargs="*", default=[], help="results of `tokenbutler-eval kl`")
    parser.add_argument("--link", type=pathlib.Path, nargs="*", default=[], help="results of `link`")
    parser.add_argument("--peers", type=pathlib.Path, nargs="*", default=[], help="results of llama_cpp.sh --sparse")
    parser.add_argument("--images", type=pathlib.Path, help="folder for the images (default: none are drawn)")
    parser.add_argument("--page", type=pathlib.Path, help="Markdown page that gets the tables (default: printed)")
    parser.add_argument("--depths", type=int, nargs="+", default=[4096, 32768, 262144], help="rows of the table")
    parser.add_argument("--frontier-depth", type=int, default=262144, help="or the deepest that was measured")
    return parser.parse_args()


def main():
    options = parse_options()
    results, qualities = load(options.decode), load(options.quality)
    divergences = Divergences(qualities)
    tables = {"decode": "\n\n".join(decode_table(result, divergences, options.depths) for result in results)}
    if any(divergences.find(result, row["setting"])[1] for result in results for row in result["rows"]):
        tables["decode"] += "\n\n\\* measured on the other model."
    swept = "\n\n".join(filter(None, (sweeps_table(result, divergences) for result in results)))
    if swept and options.page and options.images:
        swept = f"![Time and divergence against what is varied]({os.path.relpath(options.images, options.page.parent)}/sweeps.png)\n\n{swept}"
    if swept:
        tables["decode"] += f"\n\n{swept}"
    if qualities:
        tables["quality"] = "\n\n".join(quality_table(result) for result in qualities)
    if options.link:
        tables["link"] = "\n\n".join(map(link_table, load(options.link)))
    if options.peers:
        tables["peers"] = "\n\n".join(map(peers_table, load(options.peers)))
    if options.page and options.images:
        folder = os.path.relpath(options.images, options.page.parent)
        tables["decode"] = f"![Time per token against the context]({folder}/decode_vs_context.png)\n\n{tables['decode']}"
        if qualities:
            tables["quality"] = f"![Divergence against time per token]({folder}/frontier.png)\n\n{tables['quality']}"
    if options.images:
        draw(results, divergences, options.frontier_depth, options.images)
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        for name, text in tables.items():
            page = replace_between_markers(page, name, text)
        options.page.write_text(page, encoding="utf-8")
    else:
        print("\n\n".join(tables.values()))


if __name__ == "__main__":
    sys.exit(main())
