"""What the pages about data make loads, and is what they say; tests/test_docs.py runs their blocks."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "how-to" / "own-data.md", DOCS / "reference" / "partitions.md")
ARRAYS, OWN, _, _, SPIRALS, ORDINARY, MASKS, TABLE, WARDS, SERIES, HUGGING_FACE, FLOWER, *CLASSES, WORLD = (
    text for page in PAGES for text in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
)
NAMED, COUNTIES, TEXTS = CLASSES


@pytest.mark.parametrize(
    ("blocks", "expression", "expected"),
    [
        ([ARRAYS], "data.class_counts().sum().item()", 500),
        ([ARRAYS], "Tensors('my.npz', num_clients=10, partition=data.partition).sizes.equal(data.sizes)", True),
        ([OWN], "Noise(num_clients=20, partition=datamodules.Natural()).sizes.tolist()", [50] * 20),
        ([ORDINARY], "(data.sizes.sum().item(), data.batch_size, pair.sizes.tolist())", (90, 16, [3, 3])),
        (
            [ORDINARY],
            "[*zip(cities.client_names, [part.tolist() for part in cities._dealt.parts])][0]",
            ("oslo", [1, 3, 4]),
        ),
        ([ORDINARY, TEXTS], "next(iter(padded.client_batches(0, torch.Generator()))).shape[1]", 3),
        ([ORDINARY, NAMED], "(Cities().sizes.tolist(), Cities().client_label(1))", ([8, 8], "1 (rome)")),
        (
            [ORDINARY, NAMED, COUNTIES],
            "(len(Counties().held_out_batches(0)[0][0]), len(Counties().proxy_dataloader()))",
            (4, 2),
        ),
        ([ORDINARY, MASKS], "(uneven.sizes.tolist(), skewed.sizes.sum().item())", ([10] * 4, 40)),
        ([TABLE], "(data.client_names, data.sizes.tolist())", (["bern", "oslo", "rome"], [1, 1, 2])),
        (
            [WARDS],
            "datamodules.Table('wards.csv', client='hospital', target='outcome', test_share=0.3).sizes.tolist()",
            [2, 3, 2],
        ),
        ([SERIES], "(data.client_names, data.sizes.tolist())", (["bern", "oslo", "rome"], [136] * 3)),
        ([HUGGING_FACE], "(writers.client_names, writers.sizes.tolist())", (["al", "bo", "cy"], [10, 20, 10])),
        ([HUGGING_FACE, FLOWER], "(skewed.sizes.sum().item(), data.sizes.sum().item())", (40, 40)),
        (
            [WORLD],
            "[Weekdays(deadline=40).present(3, k, seed=0).all().item() for k in (5, 7)]",
            [False, True],
        ),
    ],
)
def test_what_a_page_makes(
    blocks: list[str], expression: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("datasets", "flwr_datasets"):
        if any(name in block for block in blocks):
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    if ORDINARY in blocks:
        monkeypatch.syspath_prepend(tmp_path)
        Path("my_data.py").write_text(SPIRALS)
    names: dict[str, Any] = {}
    exec("\n".join(["from fl_lightning import datamodules", *blocks]), names)
    assert eval(expression, names) == expected
