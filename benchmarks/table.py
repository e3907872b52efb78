"""The table: what the peers reach on this machine, what handgrad reaches, and whether that is what was aimed at.

`LINES` says which figure of which file a line is about and what was aimed at; everything else is read from
`results/*.csv`. Of each work the latest run counts, whole: ours and the peers' figures are never from different runs.
Lines that are missed, and what could not be measured, are shown like the others.

`python -m benchmarks.table` prints it and writes it to docs/bench.md, and into README.md between its two markers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import RESULTS
from benchmarks.lines import LINES, Line, NotMeasured
from benchmarks.process import ROOT
from benchmarks.results import Results

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HEADINGS = ("work", "peers, measured here", "handgrad", "ratio", "aim", "reached")


class Verdict(NamedTuple):
    """One line of the table, in words."""

    work: str
    peers: str
    ours: str
    ratio: str
    aim: str
    reached: str  # "yes", "no", "-" where nothing was aimed at, "not measured"


def verdict(line: Line, results: Results) -> Verdict:
    """What a line comes to. A figure that is missing leaves its place open and says why."""
    peers = "; ".join(f"{peer} {shown(line, results, peer)}" for peer in line.peers)
    aim = line.aim()
    try:
        ours = line.figure(results, line.ours)
    except NotMeasured as why:
        return Verdict(line.label(), peers, f"not measured: {why}", "", aim, "not measured")
    told = line.shown.format(ours)
    try:
        value = ours / line.figure(results, line.against) if line.against else ours
    except NotMeasured:
        return Verdict(line.label(), peers, told, "", aim, "not measured")
    return Verdict(line.label(), peers, told, f"{value:.2f}" if line.against else "", aim, line.reached(value))


def shown(line: Line, results: Results, who: str) -> str:
    try:
        return line.shown.format(line.figure(results, who))
    except NotMeasured as why:
        return f"(not measured: {why})"


def verdicts(results: Results, lines: Sequence[Line] = LINES) -> list[Verdict]:
    return [verdict(line, results) for line in lines]


def markdown(rows: Sequence[Verdict]) -> str:
    """
    >>> print(markdown([Verdict("a|b", "peer 1", "2", "2.00", "at least 1.4 x peer", "yes")]).splitlines()[-1])
    | a\\|b | peer 1 | 2 | 2.00 | at least 1.4 x peer | yes |
    """
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(rows: Sequence[Verdict]) -> str:
    """
    >>> summary([Verdict("", "", "", "", "", "yes"), Verdict("", "", "", "", "", "no")])
    '1 of 2 aims reached, 1 missed, 0 not measured'
    """
    counts = {word: sum(row.reached == word for row in rows) for word in ("yes", "no", "not measured")}
    return (
        f"{counts['yes']} of {sum(counts.values())} aims reached, {counts['no']} missed, "
        f"{counts['not measured']} not measured"
    )


def page(rows: Sequence[Verdict], results: Results) -> str:
    """docs/bench.md."""
    return f"""# Measured against others

{summary(rows)}. The peers' figures are measured in the same run as ours, each in a process of its own, taking turns;
medians. Memory is the most that the process ever held (VmHWM), with Python and torch in it. `handgrad` is set up as
`handgrad train` sets itself up, with the flags that a line names; rows of handgrad that stand beside it have them too,
"compiled" is `--compile`, and "plain" is none of the line's flags. Missed aims stay in the table.

transformers and the autograd twins keep all that their backward passes read, so the lines of peak memory compare that
with forming it again. `--recompute cheap` forms the outputs of norms and activations again: no matrix product more.
`--recompute blocks` forms all of a block again: of the step of GPT-2 124M, whose products are 1.67 TFLOP, 0.39 TFLOP
once more, that is 23 % ([`handgrad plan`](plan.md) counts them).

{markdown(rows)}

Measured on: {"; ".join(results.machines())}.

`make bench` measures again and writes this page; `make bench ARGS="--quick"` takes fewer rounds,
`ARGS="--only gpt2_step table"` some works only. A work takes what it needs from `benchmarks/`, one file each; its rows,
with quartiles, machine, versions and commit, are added to `benchmarks/results/`. A peer that is not installed is named
here as not measured.
"""


def put_between(text: str, table: str) -> str | None:
    """`text` with the table between its markers; None where it has none.

    >>> put_between(f"a\\n{BEGIN}\\nold\\n{END}\\nb", "new")
    'a\\n<!-- bench:begin -->\\nnew\\n<!-- bench:end -->\\nb'
    >>> put_between("a", "new")
    """
    found = re.search(f"{BEGIN}\n.*?{END}", text, re.DOTALL)
    return None if found is None else text[: found.start()] + f"{BEGIN}\n{table}\n{END}" + text[found.end() :]


def show(rows: Sequence[Verdict]) -> None:
    for row in rows:
        ratio = f"  = {row.ratio}" if row.ratio else ""
        print(f"[{row.reached:^12}] {row.work}\n{'':15}{row.ours}{ratio}  ({row.aim or 'no aim'})  {row.peers}")
    print(summary(rows))


def main(folder: Path = RESULTS, root: Path = ROOT) -> None:
    results = Results(folder)
    rows = verdicts(results)
    show(rows)
    (root / "docs" / "bench.md").write_text(page(rows, results), encoding="utf-8")
    readme = root / "README.md"
    text = put_between(readme.read_text(encoding="utf-8"), markdown(rows))
    if text is None:
        print(f"written: docs/bench.md; README.md has no line {BEGIN}, so it stays as it is")
    else:
        readme.write_text(text, encoding="utf-8")
        print("written: docs/bench.md, and the table in README.md")


if __name__ == "__main__":
    main()
