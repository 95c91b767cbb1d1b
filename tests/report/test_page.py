"""What is on the page: the numbers of the files, and only sections that have some."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib.command import run
from report.folders import charts, config, curves, similar, tables, write

from fl_lightning.report.compared.methods import make_methods
from fl_lightning.report.content.arrays import cosines
from fl_lightning.report.content.charts import layers
from fl_lightning.report.drawing.plots import Dots
from fl_lightning.report.numbers import NBSP, written
from fl_lightning.runs.reader import read_runs


def report(*runs: Path, out: Path) -> str:
    """The page of some runs."""
    result = run("report", *runs, "--out", out)
    assert result.status == 0, result.err
    return out.read_text(encoding="utf-8")


def sections(page: str) -> list[str]:
    return re.findall(r'<h2 class="heading" id="(.*?)"', page)


def data(page: str, key: str) -> Any:
    """Data that the page's scripts read."""
    (found,) = re.findall(rf'<script type="application/json" id="{key}">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def part(page: str) -> dict[str, Any]:
    return data(page, "part-data")


def named(page: str, beginning: str) -> list[list[str]]:
    """The rows of the table whose caption begins so."""
    (found,) = [rows for caption, rows in tables(page).items() if caption.startswith(beginning)]
    return found


def test_metrics_alone_make_a_page(tmp_path: Path) -> None:
    """The best of 0.5 and 0.25 is 0.5 for an accuracy and 0.25 for a loss; the last is last; infinity leaves a gap.
    Two numbers are named after clients, and are no values of one.
    """
    values: dict[str, list[Any]] = {"val/top1": [0.5, 0.3, 0.25], "val/loss": [0.5, "inf", 0.25]}
    values |= {"mine/score": [1, 3, 2], "clients/top1_mean": [0.5, 0.75, 0.5], "clients/state_bytes": [8, 16, 8]}
    page = report(write(tmp_path / "run", values), out=tmp_path / "page.html")
    assert sections(page) == ["summary", "accuracy", "participation", "other"]
    measures = [f"Validation {n}: {m}" for n in ("accuracy", "loss") for m in ("last", "best round")]
    assert named(page, "Last and best rounds") == [
        ["method", "seeds", "rounds", *measures],
        ["run", "–", "3", "25.00 %", "50.00 %", "0.25", "0.25"],
    ]
    assert "The best round is chosen on the examples that it is measured on" in page
    drawn = {key: curves(chart)["run"] for key, chart in charts(page).items()}
    assert drawn["val-loss"] == [0.5, None, 0.25]
    assert (drawn["clients-top1-mean"], drawn["clients-state-bytes"]) == ([0.5, 0.75, 0.5], [8, 16, 8])
    assert tables(page)["mine/score"] == [["round", "run"], ["1", "1"], ["2", "3"], ["3", "2"]]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert {"default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= {*policy.split("; ")}


def test_seeds_become_a_mean_and_a_band(tmp_path: Path) -> None:
    """Seeds 1, 2 with 0.2, 0.4 and then 0.4, 0.8: means 0.3 and 0.6. The 95 % t interval of two values is t · s / √2
    with t(0.975, 1) = 12.706: 12.706 · 0.1 = 1.27 around the first mean, and 2.54 around the last.
    """
    runs = [
        write(tmp_path / "a", {"val/loss": [0.2, 0.4]}, config(seed=1)),
        write(tmp_path / "b", {"val/loss": [0.4, 0.8]}, config(seed=2)),
        write(tmp_path / "c", {"val/loss": [0.9, 0.1]}, config("FedNova", seed=1)),
    ]
    page = report(*runs, out=tmp_path / "page.html")
    chart = charts(page)["val-loss"]
    assert curves(chart) == {"FedAvg": [0.3, 0.6], "FedNova": [0.9, 0.1]}
    low, high = (trace["y"] for trace in chart["figure"]["data"][:2])
    assert low == pytest.approx([0.3 - 1.2706, 0.6 - 2.5412], abs=1e-3)
    assert high == pytest.approx([0.3 + 1.2706, 0.6 + 2.5412], abs=1e-3)
    assert "FedAvg is 0.6 ± 2.5 at round 2 over 2 seeds; FedNova is 0.1 at round 2." in chart["alt"]
    assert tables(page)["Validation loss"][2] == ["2", "0.6 ± 2.5", "0.1"]
    results = named(page, "Last and best rounds: means over the seeds ± half of the 95 % t interval")
    assert [row[:5] for row in results[1:]] == [
        ["FedAvg", "1, 2", "2", "0.6 ± 2.5", "0.3 ± 1.3"],
        ["FedNova", "1", "2", "0.1", "0.1"],
    ]


def test_what_a_run_is_called_cannot_break_the_page(tmp_path: Path) -> None:
    name = '</script><b>"&'
    run("report", write(tmp_path / "run", {"val/loss": [1.0, 2.0]}), "--names", name, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert name not in page
    assert list(curves(charts(page)["val-loss"])) == [name]


def test_a_users_two_metrics_have_two_charts(tmp_path: Path) -> None:
    """Before and after what, a name does not tell: no rule has corrected this accuracy."""
    values = {"val/acc": [0.5, 0.4], "val/acc_after": [0.6, 0.7]}
    drawn = charts(report(write(tmp_path / "run", values, config()), out=tmp_path / "page.html"))
    assert list(curves(drawn["val-acc"]).values()) == [[0.5, 0.4]]
    assert list(curves(drawn["val-acc-after"]).values()) == [[0.6, 0.7]]


def test_before_and_after_correction_share_a_chart(tmp_path: Path) -> None:
    """GH changes the ratio of its second round; FedAvg corrects nothing, so that its one line stands for both."""
    before = {"conflict/ratio": [0.5, 0.4], "conflict/min_cosine": [-0.5, -0.4]}
    gh = before | {"conflict/ratio_after": [0.5, 0.0]}
    runs = [
        write(tmp_path / "a", before | {"conflict/ratio_after": [0.5, 0.4]}, config("ConflictMonitor")),
        write(tmp_path / "b", gh, config("GradientHarmonization", "ConflictMonitor")),
    ]
    drawn = charts(report(*runs, out=tmp_path / "page.html"))
    assert curves(drawn["conflict-ratio"]) == {
        "FedAvg": [0.5, 0.4],
        "GradientHarmonization": [0.5, 0],
        "GradientHarmonization, before correction": [0.5, 0.4],
    }
    looks = [(trace["line"]["dash"], trace["meta"]["method"]) for trace in drawn["conflict-ratio"]["figure"]["data"]]
    assert looks == [("solid", 0), ("dash", 1), ("dot", 1)]
    assert "conflict-ratio-after" not in drawn
    assert drawn["conflict-ratio"]["title"] == "Conflict ratio, before and after correction"


def test_the_summary_draws_conflict_beside_accuracy(tmp_path: Path) -> None:
    values = {"val/loss": [1, 2], "conflict/ratio": [0.5, 0.4], "val/top1": [0.5, 0.6], "conflict/removed": [0.1, 0.2]}
    page = report(write(tmp_path / "run", values, config("FedFV")), out=tmp_path / "page.html")
    summary = page[page.index('id="summary"') : page.index('id="settings"')]
    assert re.findall('id="([^"]*)-plot"', summary) == ["val-top1", "conflict-ratio"]
    assert page.count('id="conflict-ratio-plot"') == 1
    assert "with <code>--trainer.callbacks ConflictMonitor</code> in place of the rules" in summary


def test_the_summary_tells_conflict_before_and_after_correction(tmp_path: Path) -> None:
    """Ratios of 0.5 and 0.4, mean 0.45, which GH corrects to 0.2 and 0.1, mean 0.15. FedLAW was not measured."""
    before = {"val/top1": [0.5, 0.6], "conflict/ratio": [0.5, 0.4]}
    runs = [
        write(tmp_path / "a", before | {"conflict/ratio_after": [0.5, 0.4]}, config("ConflictMonitor")),
        write(tmp_path / "b", before | {"conflict/ratio_after": [0.2, 0.1]}, config("GradientHarmonization")),
        write(tmp_path / "c", {"val/top1": [0.5, 0.6]}, config("FedLAW")),
    ]
    page = report(*runs, out=tmp_path / "page.html").replace(NBSP, " ")
    assert (
        "<strong>Pairs of clients in conflict (mean over the rounds, → after correction): "
        "FedAvg 45.00 % and GradientHarmonization 45.00 % → 15.00 %.</strong>"
    ) in page
    alone = report(runs[1], out=tmp_path / "alone.html").replace(NBSP, " ")
    paragraph = alone.partition('class="verdict"')[2].partition("</p>")[0]
    assert paragraph.count("Pairs of clients in conflict") == 1
    assert "after correction): GradientHarmonization 45.00 % → 15.00 %." in paragraph


def test_what_never_changes_is_a_sentence(tmp_path: Path) -> None:
    """γ is always 1, the score always 2 and 3: no charts. One round is no constant, and the main metric has a chart."""
    runs = [
        write(tmp_path / f"{n}", {"val/top1": [0.5, 0.5], "fedlaw/gamma": [1, 1], "mine/score": [n, n]}, config(rule))
        for n, rule in ((2, "A"), (3, "B"))
    ]
    page = report(*runs, out=tmp_path / "page.html")
    assert list(charts(page)) == ["val-top1"]
    assert "Constant over all rounds: fedlaw/gamma (Shrinking factor γ) = 1." in page
    assert "Constant over all rounds: mine/score = 2 (A), 3 (B)." in page


def test_the_axes_of_seconds_and_bytes_are_sums_and_means_over_seeds(tmp_path: Path) -> None:
    """Seconds of training 100, 200 and 300, 400, half of them on the server: sums 100, 300 and 300, 700, means 200 and
    500 seconds, 3.33 and 8.33 minutes. 2 and 4 MB so far in both seeds. A page without them has no such axes.
    """
    runs = [
        write(
            tmp_path / f"{n}",
            {"val/top1": [0, 1], "bytes/total": [2e6, 4e6]},
            config(seed=n),
            {"seconds": [900, 900], "local": half, "server": half, "memory_mib": [1, 1], "gpu_mib": [0, 0]},
        )
        for n, half in ((1, [50, 100]), (2, [150, 200]))
    ]
    assert part(report(*runs, out=tmp_path / "page.html"))["axes"] == [
        {"key": "seconds", "title": "training time (minutes)", "values": [[[1, 2], [3.333, 8.333]]]},
        {"key": "bytes", "title": "bytes sent (MB)", "values": [[[1, 2], [2, 4]]]},
    ]
    page = report(write(tmp_path / "run", {"val/loss": [1.0]}), out=tmp_path / "page.html")
    assert part(page) == {"methods": ["run"], "axes": [], "names": None}


def test_settings_that_differ_are_a_table_and_the_others_a_line(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"{n}", {"val/loss": [1.0]}, config(alpha=a)) for n, a in enumerate((0.1, 10.0))]
    page = report(*runs, out=tmp_path / "page.html")
    assert tables(page)["Settings that differ"] == [
        ["setting", "alpha=0.1", "alpha=10.0"],
        ["Partition: alpha", "0.1", "10"],
    ]
    same = tables(page)["5 settings are the same for all methods"]
    assert same[1:4] == [["Rules", "FedAvg"], ["Rounds", "4"], ["Data", "Digits"]]
    assert "class_path: fl_lightning.datamodules.Digits" in page


def test_cosines_are_packed_to_an_accuracy_of_one_part_in_254(tmp_path: Path) -> None:
    """Rounds 1 and 2 of three clients; GH changes them in the second alone."""
    draw = np.random.default_rng(0)
    first, before, after = (similar(3, draw) for _ in range(3))
    arrays = {
        "cosines_1": {"clients": [0, 4, 7], "before": first, "after": first},
        "cosines_2": {"clients": [1, 4, 8], "before": before, "after": after},
    }
    page = report(write(tmp_path / "run", {"val/loss": [1.0, 2.0]}, **arrays), out=tmp_path / "page.html")
    chart = charts(page)["cosines"]
    one, two = chart["frames"]["runs"][0]["frames"]
    assert (one["round"], one["clients"], len(one["cosines"])) == (1, [0, 4, 7], 1)
    assert (two["round"], two["clients"], len(two["cosines"])) == (2, [1, 4, 8], 2)
    for packed, whole in zip(two["cosines"], (before, after), strict=True):
        upper = np.frombuffer(base64.b64decode(packed), np.int8) / 127
        assert np.abs(upper - whole[np.triu_indices(3)]).max() <= 0.5 / 127 + 1e-9
    numbers = tables(page)["Cosines by run and round"]
    pairs = before[np.triu_indices(3, 1)]
    share = f"{100 * (pairs < 0).mean():.2f} %"
    assert numbers[2][3:6] == [share, written(pairs.min()), written(pairs.mean())]
    assert numbers[1][3:6] == numbers[1][6:9]  # no correction


def test_cosines_that_do_not_fit_are_left_out(runs: Path) -> None:
    """Of three rounds of four runs, there is room for the last one of each method's first seed."""
    chart = cosines(make_methods(read_runs([runs]))[0], budget=1)
    assert chart
    assert chart.frames
    assert [[frame.round for frame in run.frames] for run in chart.frames.runs] == [[6], [6]]
    assert "Of 12 recorded matrices 2 are shown" in chart.caption


def test_clients_are_ordered_by_class_and_by_similar_updates(tmp_path: Path) -> None:
    """Clients 0 and 2 agree, 1 and 3 do: leaves of the tree keep them together. Most of their examples are of classes
    1, 0, 1, 0; client 2 has more of class 1 than client 0.
    """
    alike = np.array([[1, -0.5, 0.9, -0.5], [-0.5, 1, -0.5, 0.8], [0.9, -0.5, 1, -0.5], [-0.5, 0.8, -0.5, 1]])
    cosines = {"clients": [0, 1, 2, 3], "before": alike, "after": alike}
    partition = {"sizes": [5, 5, 7, 5], "counts": [[1, 4], [5, 0], [1, 6], [4, 1]]}
    run = write(tmp_path / "run", {"val/loss": [1.0]}, partition=partition, cosines_1=cosines)
    orders = charts(report(run, out=tmp_path / "page.html"))["cosines"]["frames"]["orders"]["–"]
    assert orders["class"] == [1, 3, 2, 0]
    assert {frozenset(orders["cluster"][:2]), frozenset(orders["cluster"][2:])} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


def test_conflict_of_clients_against_their_accuracy(tmp_path: Path) -> None:
    """Client 4 conflicts with 7 and 9, each of which conflicts with 4 alone: shares 1, 1/2, 1/2 of its two pairs.
    What clients hold out counts more than the accuracy of training.
    """
    before = [[1, -0.5, -0.1], [-0.5, 1, 0.2], [-0.1, 0.2, 1]]
    metrics = {f"clients/top1/{k}": [0.1, 0.2] for k in (4, 7, 9)} | {
        f"held_out/top1/{k}": [0.5, value] for k, value in ((4, 0.6), (7, 0.7), (9, ""))
    }
    arrays = {"cosines_2": {"clients": [4, 7, 9], "before": before, "after": before}}
    drawn = charts(report(write(tmp_path / "run", metrics, **arrays), out=tmp_path / "page.html"))["scatter"]
    (dots,) = drawn["figure"]["data"]
    assert (dots["customdata"], dots["x"], dots["y"]) == ([4, 7, 9], [1, 0.5, 0.5], [0.6, 0.7, 0.5])
    assert drawn["figure"]["layout"]["yaxis"]["title"]["text"] == "accuracy on the client's held-out examples"


def test_accuracies_of_two_kinds_stand_on_no_axis_together(tmp_path: Path) -> None:
    """A run without held-out examples is left out beside one with them."""
    cosines = {"clients": [0, 1], "before": [[1, -0.5], [-0.5, 1]], "after": [[1, -0.5], [-0.5, 1]]}
    trained = {f"clients/top1/{k}": [0.9] for k in range(2)}
    one = write(tmp_path / "one", trained | {f"held_out/top1/{k}": [0.5] for k in range(2)}, cosines_1=cosines)
    other = write(tmp_path / "other", trained, cosines_1=cosines)
    (dots,) = charts(report(one, other, out=tmp_path / "page.html"))["scatter"]["figure"]["data"]
    assert dots["y"] == [0.5, 0.5]


def test_clients_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    """Client 0 takes part in rounds 1 and 3 with losses 2 and 1, client 1 in round 2 with 5; client 2 never does.
    A sparkline's letters go from 0 for the lowest loss, 1, to z for the highest one, 5: 2 is the letter 61 / 4 = 15.
    The global model is evaluated on client 2 in all rounds, which are no rounds of the client's.
    """
    metrics = {"val/loss": [1, 1, 1], "clients/loss/0": [2, "", 1], "clients/loss/1": ["", 5, ""]}
    metrics |= {"held_out/top1/2": [0.5, 0.75, 1.0]}
    partition = {"sizes": [30, 20, 10], "counts": [[30, 0], [9, 11], [0, 10]]}
    page = report(write(tmp_path / "run", metrics, partition=partition), out=tmp_path / "page.html")
    listed = data(page, "clients-data")
    assert listed["measures"] == [
        {"title": "training loss", "percent": False, "low": 1.0, "high": 5.0},
        {"title": "held-out accuracy", "percent": True, "low": 0.5, "high": 1.0},
    ]
    (run,) = listed["runs"]
    assert (run["method"], run["seed"], run["of"], run["clients"]) == (0, "–", 3, [0, 1, 2])
    assert run["columns"] == {
        "examples": [30, 20, 10],
        "classes": [1, 2, 1],
        "main class": [0, 1, 1],
        "rounds": [2, 1, None],
    }
    assert run["measures"][0] == {"last": [1, 5, None], "mean": [1.5, 5, None], "sparks": ["F.0", ".z.", "..."]}
    assert run["measures"][1]["last"] == [None, None, 1]
    (frame,) = charts(page)["partition"]["frames"]["runs"][0]["frames"]
    assert list(zip(*frame["held"], strict=True)) == [(0, 0, 30), (1, 0, 9), (1, 1, 11), (2, 1, 10)]


def test_of_many_clients_those_with_the_most_examples_are_listed(tmp_path: Path) -> None:
    sizes = np.arange(12_000)
    page = report(write(tmp_path / "run", {"val/loss": [1.0]}, partition={"sizes": sizes}), out=tmp_path / "page.html")
    (run,) = data(page, "clients-data")["runs"]
    assert (run["clients"][0], run["clients"][-1], len(run["clients"]), run["of"]) == (2000, 11_999, 10_000, 12_000)


def test_weights_surfaces_layers_and_eigenvalues_have_charts(tmp_path: Path) -> None:
    metrics = {
        "fedlaw/gamma": [0.9, 0.8],
        "fedlaw/weight/0": [0.25, 0.75],
        "fedlaw/weight/1": [0.75, 0.25],
        "conflict/layer/fc1": [0.5, 0.25],
        "conflict/layer/fc2": [0.0, 1.0],
        "hessian/eigenvalue_1": ["", 4.0],
        "hessian/eigenvalue_2": ["", -2.0],
    }
    surface = {"steps": [-1.0, 0.0, 1.0], "loss": [[10, 10, np.inf], [10, 1, 10], [10, 10, 10]]}
    page = report(write(tmp_path / "run", metrics, surface_2=surface), out=tmp_path / "page.html")
    drawn = charts(page)
    assert drawn["fedlaw-weight"]["frames"]["runs"][0]["frames"][0]["z"] == [[0.25, 0.75], [0.75, 0.25]]
    assert drawn["fedlaw-weight"]["figure"]["scale"]["high"] == 1  # twice the even share
    assert drawn["layers"]["figure"]["data"][0]["x"] == [0.375, 0.5]
    assert curves(drawn["spectrum"]) == {"run": [4.0, -2.0]}
    assert drawn["surface"]["frames"]["runs"][0]["frames"][0]["loss"] == [[10, 10, None], [10, 1, 10], [10, 10, 10]]
    assert sections(page) == ["summary", "conflict", "fedlaw", "curvature", "clients"]


def test_the_critical_round_is_marked(tmp_path: Path) -> None:
    """Means over five rounds around each (of fewer at the start) of 1, 1, 1, 1, -2, -2, -2, -2, -2, -2: that of round 4
    is (1 + 1 + 1 - 2 - 2) / 5 < 0, the first below zero.
    """
    values = [1.0] * 4 + [-2.0] * 6
    page = report(write(tmp_path / "run", {"coherence/local": values}), out=tmp_path / "page.html")
    line, marked = charts(page)["coherence-local"]["figure"]["data"]
    assert line["y"] == values
    assert (marked["x"], marked["y"]) == ([4], [1.0])
    assert "critical round, the first with a negative mean over five rounds; run 4." in page


def test_layers_are_in_the_modules_order(tmp_path: Path) -> None:
    """As saved; without that, by their numbers."""
    metrics = {f"conflict/layer/{name}": [0.5] for name in ("conv10", "conv2", "a")}
    saved = write(tmp_path / "saved", metrics, layers={"names": ["conv2", "conv10", "a"]})
    drawn = [layers(make_methods(read_runs([run]))[0]) for run in (saved, write(tmp_path / "plain", metrics))]
    orders = [chart.plot.categories for chart in drawn if chart and isinstance(chart.plot, Dots)]
    assert orders == [["conv2", "conv10", "a"], ["a", "conv2", "conv10"]]


def test_the_tooltip_of_a_layer_is_in_per_cent(tmp_path: Path) -> None:
    """A layer without a ratio after correction has a dash there."""
    metrics: dict[str, list[Any]] = {f"conflict/layer/{name}": [0.5] for name in "ab"}
    run = write(tmp_path / "run", metrics | {"conflict/layer_after/a": [0.25]})
    chart = layers(make_methods(read_runs([run]))[0])
    assert chart is not None
    assert isinstance(chart.plot, Dots)
    (dots,) = chart.plot.dots.values()
    assert [told.rpartition(": ")[2] for told in dots["name"]] == ["25.00\xa0%", "–"]


def test_adapters_have_a_table_with_their_matrices_apart(tmp_path: Path) -> None:
    """The last tenth of 20 rounds is rounds 19 and 20. Where round 19 corrects nothing, its ratio is that before:
    (50 + 30) / 2 = 40 % before and (50 + 10) / 2 = 30 % after. The other run corrects nothing, and freezes a matrix.
    """
    metrics: dict[str, list[Any]] = {
        "layer/1.qkv.lora_A.default": [0.0] * 20,
        "layer/0.proj.lora_A.default": [1.0] * 18 + [0.5, 0.3],
        "layer/0.proj.lora_B.default": [1.0] * 18 + [0.6, 0.8],
        "layer/head": [1.0] * 20,
        "layer_after/1.qkv.lora_A.default": [1.0] * 18 + ["", 0.0],
        "layer_after/0.proj.lora_A.default": [1.0] * 18 + ["", 0.1],
        "layer_after/0.proj.lora_B.default": [1.0] * 18 + [0.2, 0.4],
    }
    metrics = {f"conflict/{name}": values for name, values in metrics.items()}
    plain = {name: metrics[name] for name in ["conflict/layer/0.proj.lora_B.default"]}
    order = {"names": [*(f"{layer}.lora_{factor}.default" for layer in ("1.qkv", "0.proj") for factor in "AB"), "head"]}
    one = write(tmp_path / "corrected", metrics, layers=order)
    page = report(one, write(tmp_path / "plain", plain), out=tmp_path / "page.html")
    assert named(page, "Conflict ratio of LoRA's matrices") == [
        ["adapter of", "corrected: A", "corrected: B", "plain: B"],
        ["1.qkv", "0 → 0 %", "–", "–"],
        ["0.proj", "40 → 30 %", "70 → 30 %", "70 %"],
        ["mean of the layers", "20 → 15 %", "70 → 30 %", "70 %"],
    ]
    assert "conflict/layer_after" not in " ".join(charts(page))


TIMES = "Time (median over the rounds, mean over the runs) and largest memory"


def test_times_are_medians_and_their_rest_is_what_is_left(tmp_path: Path) -> None:
    """A monitor looks for 6 s in one of three rounds: of the 18 s, 0.5, 1.5 and 1 are neither part's."""
    timings = {"seconds": [3, 5, 10], "local": [2, 2, 2], "server": [0.5, 1.5, 1], "monitors": [0, 0, 6]}
    timings |= {"memory_mib": [1024, 2048, 2048]}
    page = report(write(tmp_path / "run", {"val/loss": [1, 1, 1]}, timings=timings), out=tmp_path / "page.html")
    assert tables(page)[TIMES][1] == ["run", "0.3", "5", "2", "1", "0", "1", "2", "0"]
    assert tables(page)["Seconds of a round by part"] == [
        ["method", "local training", "server", "monitors", "evaluation, logs, checkpoints"],
        ["run", "2", "1", "0", "1"],
    ]
    assert curves(charts(page)["seconds"]) == {"run": [3, 5, 10]}
    assert "gpu-mib" not in charts(page)


def test_the_environment_says_which_runs_differ(tmp_path: Path) -> None:
    """Times are a range; of more than six values one is shown, so that many runs need no more rows than few."""
    runs = []
    for n in range(7):
        found: dict[str, Any] = {"command": f"fit --seed_everything={n}", "host": f"node{n % 2}"}
        found |= {"code": {"commit": "abc", "dirty": True}, "started": f"2026-11-22T08:0{n}:00+00:00"}
        found |= {"versions": {"torch": "2.6"}, "wandb": {"id": "a", "url": None}}
        found["resumed"] = ["2026-11-22T09:00:00+00:00", {"time": "2026-11-22T10:00:00+00:00", "round": 3}]
        runs.append(write(tmp_path / f"{n}", {"val/loss": [1]}, config(seed=n), environment=found))
    odd, even = ("; ".join(f"FedAvg, seed {n}" for n in range(first, 7, 2)) for first in (1, 0))
    assert tables(report(*runs, out=tmp_path / "page.html"))["Environment of the runs"][1:] == [
        ["commit of the code", "abc", "all"],
        ["code changed since the commit", "True", "all"],
        ["command", "7 different values, such as fit --seed_everything=0", "all"],
        ["host", "node0", even],
        ["host", "node1", odd],
        ["resumed", "2026-11-22T09:00:00+00:00, 2026-11-22T10:00:00+00:00 (round 3)", "all"],
        ["started", "2026-11-22T08:00:00+00:00 to 2026-11-22T08:06:00+00:00", "all"],
        ["torch", "2.6", "all"],
        ["wandb: id", "a", "all"],
    ]


def test_a_page_lies_beside_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run: in its folder. Several: in the folder that all are in."""
    monkeypatch.chdir(tmp_path)
    runs = [
        write(Path("runs", name, "version_0"), {"val/loss": [1]}, config(rule))
        for name, rule in (("a", "A"), ("b", "B"))
    ]
    assert run("report", runs[0]).out.startswith("report: runs/a/version_0/report.html (1 run,")
    assert run("report", *runs).out.startswith("report: runs/report.html (2 runs, 2 methods,")
    assert Path("runs/a/version_0/report.html").is_file()
    assert Path("runs/report.html").is_file()


def test_a_section_draws_a_hundred_metrics_and_says_how_many_there_are_besides(tmp_path: Path) -> None:
    """The first of 103 metrics is in the summary. Thousands of curves would take minutes; metrics.csv has them all."""
    values = {f"mine/m{number:03}": [float(number), number + 1.0] for number in range(103)}
    page = report(write(tmp_path / "run", values), out=tmp_path / "page.html")
    drawn = {key: curves(chart)["run"] for key, chart in charts(page).items()}
    assert drawn == {name.replace("/", "-"): numbers for name, numbers in [*values.items()][:101]}
    assert "2 more metrics are in metrics.csv alone, from mine/m101 on." in page
