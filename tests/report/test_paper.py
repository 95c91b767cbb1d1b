"""The comparison and the figures of a report, compiled into a paper of one page."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from lib.command import run
from report.folders import config, similar, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None, reason="there is no LaTeX: apt-get install texlive-latex-extra"
    ),
]
PAPER = r"""
\documentclass[10pt,twocolumn]{article}
\usepackage[letterpaper,textwidth=6.75in,textheight=9in,columnsep=0.25in]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
\twocolumn[\begin{center}\footnotesize\setlength{\tabcolsep}{4pt}
\input{figures/comparison}
\includegraphics{figures/cosines.pdf}
\end{center}]
\noindent\includegraphics{figures/val-top1.pdf}
\newpage
\noindent\includegraphics{figures/partition.pdf}
\end{document}
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """The folder of a paper with figures and a table of three methods and three seeds."""
    draw = np.random.default_rng(0)
    partition = {"sizes": np.full(4, 25), "counts": draw.multinomial(25, [0.1] * 10, 4)}
    for number, rule in enumerate(("FedAvg", "GradientHarmonization", "FedNova")):
        for seed in (1, 2, 3):
            top1 = (0.7 + 0.05 * number) * (1 - np.exp(-np.arange(1, 61) / 10)) + 0.01 * draw.standard_normal(60)
            write(
                tmp_path / "runs" / f"{rule}_{seed}",
                {"val/top1": top1.tolist(), "bytes/total": (1e6 * np.arange(1, 61)).tolist()},
                config(rule, seed=seed),
                {name: [0.5] * 60 for name in ("seconds", "local", "server", "monitors", "memory_mib", "gpu_mib")},
                partition=partition,
                cosines_60={"clients": range(5), "before": similar(5, draw), "after": similar(5, draw)},
            )
    result = run("report", tmp_path / "runs", "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert result.status == 0, result.err
    (tmp_path / "paper.tex").write_text(PAPER)
    return tmp_path


def test_everything_fits_on_a_page(paper: Path) -> None:
    """Nothing is wider than its column, and LaTeX complains of nothing."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=paper, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout
    assert "Output written on paper.pdf (1 page" in done.stdout
    assert not re.findall(r"(?:Over|Under)full \\hbox.*", done.stdout)
    assert (paper / "figures" / "comparison.tex").read_text().count("GradientHarmonization") == 1
