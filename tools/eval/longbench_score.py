#!/usr/bin/env python3
"""Scores the answers of `tokenbutler-eval longbench` with LongBench's metrics (arXiv 2308.14508, table 1).

usage: longbench_score.py ROWS.jsonl [--json OUT.json]   ROWS.jsonl is what --resume named

Prints a Markdown table: tasks across, settings down, scores in percent, and the average of those settings that have
answers in every task. Needs the packages of tools/eval/requirements.txt.
"""

import argparse
import collections
import json
import pathlib
import re
import string
import sys

CHINESE_PUNCTUATION = ("！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—"
                       "‘’‛“”„‟…‧﹏.")


def overlap_f1(answer_units, expected_units):
    """F1 of two lists of tokens as bags."""
    common = sum((collections.Counter(answer_units) & collections.Counter(expected_units)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(answer_units), common / len(expected_units)
    return 2 * precision * recall / (precision + recall)


def english_words(text):
    """Lower-case words without punctuation and articles, as SQuAD's script has them."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def chinese_words(text):
    import jieba
    words = []
    for word in jieba.cut(text, cut_all=False):
        kept = "".join(c for c in word.lower() if c not in string.punctuation + CHINESE_PUNCTUATION)
        words.append("".join(kept.split()))
    return [word for word in words if word]


def qa_f1(answer, expected, _):
    return overlap_f1(english_words(answer), english_words(expected))


def qa_f1_zh(answer, expected, _):
    return overlap_f1(chinese_words(answer), chinese_words(expected))


def rouge_l(answer, expected, _):
    """F1 of the longest common subsequence by the package `rouge`, which refuses texts without words."""
    import rouge
    try:
        return rouge.Rouge().get_scores([answer], [expected], avg=True)["rouge-l"]["f"]
    except (ValueError, RecursionError):
        return 0.0


def rouge_l_zh(answer, expected, classes):
    import jieba
    return rouge_l(" ".join(jieba.cut(answer)), " ".join(jieba.cut(expected)), classes)


def classification(answer, expected, classes):
    """1 over the number of classes that the answer names, if the expected one is among them."""
    named = [name for name in classes if name in answer]
    # A part of the expected class's name is not another class. The benchmark's loop passes over the entry behind
    # one that it removes; so does this one.
    at = 0
    while at < len(named):
        if named[at] in expected and named[at] != expected:
            named.remove(named[at])
        at += 1
    return 1.0 / len(named) if expected in named else 0.0


def right_numbers(answer, expected_number):
    """Share of the answer's numbers that are the expected one."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(expected_number) / len(numbers) if numbers else 0.0


def count(answer, expected, _):
    return right_numbers(answer, expected)


def retrieval(answer, expected, _):
    return right_numbers(answer, re.findall(r"Paragraph (\d+)", expected)[0])


def retrieval_zh(answer, expected, _):
    return right_numbers(answer, re.findall(r"段落(\d+)", expected)[0])


def code_similarity(answer, expected, _):
    """Edit similarity of the first line that is neither a comment nor a fence, in whole percent."""
    from rapidfuzz import fuzz
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(fuzz.ratio(line, expected)) / 100


METRICS = {
    "narrativeqa": qa_f1, "qasper": qa_f1, "multifieldqa_en": qa_f1, "multifieldqa_zh": qa_f1_zh,
    "hotpotqa": qa_f1, "2wikimqa": qa_f1, "musique": qa_f1, "dureader": rouge_l_zh,
    "gov_report": rouge_l, "qmsum": rouge_l, "multi_news": rouge_l, "vcsum": rouge_l_zh,
    "trec": classification, "triviaqa": qa_f1, "samsum": rouge_l, "lsht": classification,
    "passage_count": count, "passage_retrieval_en": retrieval, "passage_retrieval_zh": retrieval_zh,
    "lcc": code_similarity, "repobench-p": code_similarity,
}
# Few-shot tasks: the first line is the answer.
FIRST_LINE = {"trec", "triviaqa", "samsum", "lsht"}


def score(task, answer, expected, classes):
    """The best score that the answer has with any of the expected ones, in [0, 1]."""
    if task in FIRST_LINE:
        answer = answer.lstrip("\n").split("\n")[0]
    return max(METRICS[task](answer, one, classes) for one in expected)


def setting_name(row):
    name = f"{row['setting']} {row['question']}"
    if row["token_budget"]:
        name += f" {row['token_budget']}"
    if row.get("predictor"):
        name += f" {row['predictor']}"
    return name


def read_rows(path):
    """The rows of a file whose first line holds facts; a last line that was cut off is passed over."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines[1:-1] if line]
    unknown = sorted({row.get("task", "") for row in rows} - set(METRICS))
    if unknown:
        raise SystemExit(f"{path}: no LongBench tasks: {', '.join(unknown)}")
    if not rows:
        raise SystemExit(f"{path} has no rows")
    return rows


def score_rows(rows):
    """{setting: {task: {"score": percent, "samples": n}}}, in the order of the rows."""
    scores = {}
    for row in rows:
        one = score(row["task"], row["output"], row["expected"], row["all_classes"])
        scores.setdefault(setting_name(row), {}).setdefault(row["task"], []).append(one)
    return {setting: {task: {"score": 100 * sum(values) / len(values), "samples": len(values)}
                      for task, values in tasks.items()}
            for setting, tasks in scores.items()}


def table(scores):
    tasks = [task for task in METRICS if any(task in of_setting for of_setting in scores.values())]
    lines = ["| setting | " + " | ".join(tasks) + " | average | samples |", "|---|" + "--:|" * (len(tasks) + 2)]
    for setting, of_setting in scores.items():
        cells = [f"{of_setting[task]['score']:.2f}" if task in of_setting else "-" for task in tasks]
        is_whole = all(task in of_setting for task in tasks)
        average = sum(of_setting[task]["score"] for task in tasks) / len(tasks) if is_whole else None
        cells.append("-" if average is None else f"{average:.2f}")
        cells.append(str(sum(entry["samples"] for entry in of_setting.values())))
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows")
    parser.add_argument("--json", help="also write the scores to this file")
    arguments = parser.parse_args()
    scores = score_rows(read_rows(arguments.rows))
    print(table(scores))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
