"""Table: clients from a column of a pandas frame or a file."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lib.command import fit, run
from lib.toy import Linear, trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedOrchestrator
from fl_lightning.datamodules import IID, Natural, Table
from fl_lightning.errors import ConfigurationError

FRAME = pd.DataFrame(
    {
        "hospital": ["rome", "oslo", "rome", "bern", "oslo", "rome"],
        "age": [40, 50, 60, 70, 80, 90],
        "smokes": [True, False, True, False, True, False],
        "risk": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        "outcome": ["well", "ill", "well", "ill", "dead", "well"],
    }
)
FEATURES = ["age", "smokes"]
YAML = """
trainer: {max_epochs: 2, accelerator: cpu}
model:
  client:
    class_path: ImageClassifier
    init_args:
      num_classes: 3
      network: {class_path: LogisticRegression, init_args: {in_features: 2, num_classes: 3}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.001}}
data:
  class_path: Table
  init_args: {train: my.csv, client: hospital, target: outcome, features: [age, smokes], test_share: 0.3}
"""


def table(train: Any = FRAME, **settings: Any) -> Table:
    return Table(train, **{"client": "hospital", "target": "outcome", "features": FEATURES} | settings)


def ages(data: Table) -> list[list[float]]:
    return [data.client_dataset(client)[:][0][:, 0].tolist() for client in range(data.num_clients)]


def test_each_value_is_a_client_in_sorted_order() -> None:
    data = table()
    assert data.num_clients == 3
    assert data.client_names == ["bern", "oslo", "rome"]
    assert ages(data) == [[70], [50, 80], [40, 60, 90]]
    assert data.sizes.tolist() == [1, 2, 3]
    inputs, _ = data.client_dataset(1)[:]
    assert (inputs.dtype, inputs.tolist()) == (torch.float32, [[50, 0], [80, 1]])
    assert ages(table(client="client", partition=Natural("hospital"))) == ages(data)
    coded = FRAME.assign(hospital=[30, 20, 30, 10, 20, 30])
    assert table(coded).client_names == ["10", "20", "30"]
    assert table(coded, client_names=["bern", "oslo", "rome"]).client_names == ["bern", "oslo", "rome"]


def test_without_a_column_all_rows_are_one_clients(tmp_path: Path) -> None:
    """As at a site, whose own file names no client; the rows of the test table are the client's, too."""
    own = FRAME.drop(columns="hospital")
    data = table(own, client=None, test=own.iloc[:2])
    assert (data.num_clients, data.client_names, ages(data)) == (1, ["all"], [own["age"].tolist()])
    assert next(iter(data.held_out_batches(0)))[0][:, 0].tolist() == own["age"].tolist()[:2]
    own.to_csv(tmp_path / "own.csv", index=False)
    assert ages(table(str(tmp_path / "own.csv"), client=None)) == ages(data)
    with pytest.raises(
        ConfigurationError, match=r"got age, smokes, risk, outcome: .* client \(null if all rows are one"
    ):
        table(own)._dealt  # noqa: B018


def test_classes_are_numbered_in_sorted_order() -> None:
    """Dead, ill, well; the test set may have a class more."""
    data = table()
    assert data.class_names == ["dead", "ill", "well"]
    assert data.client_dataset(1)[:][1].tolist() == [1, 0]
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 3]]
    more = table(test=FRAME.assign(outcome="better"))
    assert more.class_names == ["better", "dead", "ill", "well"]
    assert table(target="smokes", features=["age"]).class_names == [False, True]
    ages_meant = table(target="age", features=["smokes"], task="classification")
    assert ages_meant.client_dataset(2)[:][1].tolist() == [0, 2, 5]


def test_regression() -> None:
    """Floats stay floats; a list of columns makes a matrix."""
    one, listed, two = (table(target=target, features=["smokes"]) for target in ("risk", ["risk"], ["risk", "age"]))
    assert one.client_dataset(1)[:][1].tolist() == pytest.approx([0.2, 0.5])
    assert listed.client_dataset(1)[:][1].shape == (2, 1)
    assert two.client_dataset(1)[:][1].flatten().tolist() == pytest.approx([0.2, 50, 0.5, 80])
    assert one.class_counts() is None
    others = table(FRAME.drop(columns="outcome").astype({"age": float}), target="risk", features=None)
    assert others.client_dataset(0)[:][0].tolist() == [[70, 0]]  # all other columns are features
    assert one.class_names == []


def test_the_task_decides_about_whole_numbers() -> None:
    """Days in hospital of 2 to 17 are five classes, or the numbers themselves."""
    days = FRAME.assign(stay=[2, 17, 3, 5, 2, 4])
    with pytest.warns(UserWarning, match="^stay: whole numbers from 2 to 17 are taken as 5 classes, numbered from 0: "):
        assert table(days, target="stay").client_dataset(1)[:][1].tolist() == [4, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (targets,) = table(days, target="stay", task="regression").client_dataset(1)[:][1:]
        assert (targets.dtype, targets.tolist()) == (torch.float32, [17, 2])
        meant = table(days, target="stay", task="classification")
        assert meant.client_dataset(1)[:][1].tolist() == [4, 0]
        assert meant.class_names == [2, 3, 4, 5, 17]
        floats = table(target="risk", task="classification")
        assert floats.client_dataset(1)[:][1].tolist() == [1, 4]
        assert table(days.assign(stay=[0, 1, 2, 0, 1, 2]), target="stay").class_names == [0, 1, 2]
        assert table(target="smokes", features=["age"]).class_names == [False, True]


def test_a_test_table() -> None:
    """Rows of clients that do not train belong to nobody; without a client column, all rows do."""
    rows = FRAME.iloc[[1, 0, 4]].assign(hospital=["oslo", "paris", "oslo"])
    data = table(test=rows, eval_batch_size=2)
    with pytest.warns(
        UserWarning, match="hospital: expected train's clients in test, got 1 of 3 rows of others, .*'paris'"
    ):
        data.setup("fit")
    assert [batch[0][:, 0].tolist() for batch in data.val_dataloader()] == [[50, 40], [80]]
    assert [batch[0][:, 0].tolist() for batch in data.test_dataloader()] == [[50, 40], [80]]
    assert [[b[0][:, 0].tolist() for b in data.held_out_batches(k)] for k in range(3)] == [[], [[50, 80]], []]
    anonymous = table(test=rows.drop(columns="hospital"))
    assert [list(anonymous.held_out_batches(k)) for k in range(3)] == [[], [], []]
    assert len(next(iter(anonymous.val_dataloader()))[0]) == 3


@pytest.mark.parametrize("seed", [0, 1])
def test_a_share_of_each_clients_rows(seed: int) -> None:
    """Of 1, 2 and 3 rows a share of a half keeps back 0, 1 and 2 (2 by rounding 1.5 to even), all in the test set."""
    data = table(test_share=0.5, seed=seed)
    kept = ages(data)
    assert list(map(len, kept)) == [1, 1, 1]
    back = [[age for b in data.held_out_batches(k) for age in b[0][:, 0].tolist()] for k in range(3)]
    assert list(map(len, back)) == [0, 1, 2]
    assert [sorted(a + b) for a, b in zip(kept, back, strict=True)] == [[70], [50, 80], [40, 60, 90]]
    (batch,) = data.val_dataloader()
    assert batch[0][:, 0].tolist() == back[1] + back[2]
    assert ages(table(test_share=0.5, seed=seed)) == kept


def test_without_a_test_set_the_modules_own_loader_serves() -> None:
    seen: list[int] = []

    class Own(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.w.sum()

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            seen.append(len(batch[0]))

        def val_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.ones(7)), batch_size=7)

    trainer().fit(FederatedOrchestrator(Own(1)), datamodule=table())
    trainer().fit(FederatedOrchestrator(Own(1)), datamodule=table(test=FRAME))
    assert seen == [7, 6]
    data = table()
    for _ in range(2):  # what one fit borrows, the next one finds as it was
        trainer().fit(FederatedOrchestrator(Own(1)), datamodule=data)
    trainer().fit(FederatedOrchestrator(Linear(1)), datamodule=data)
    assert seen == [7, 6, 7, 7]


def test_from_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("my.csv", index=False)
    Path("tiny.yaml").write_text(YAML)
    fit()
    shown = run("data", "--config", "tiny.yaml")
    assert "4 training examples; 3 of 3 clients" in shown.out, shown.err


@pytest.mark.parametrize("name", ["my.parquet", "my.pq", "MY.PARQUET"])
def test_a_parquet_file(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(tmp_path / name)
    assert ages(table(str(tmp_path / name))) == ages(table())


def test_row_numbers_in_a_file_are_no_feature(tmp_path: Path) -> None:
    """A frame is written with its row numbers unless told otherwise; of rows sorted by class, they tell the class."""
    numbers = FRAME[["hospital", "age", "risk", "outcome"]].sort_values("outcome")
    numbers.to_csv(tmp_path / "with.csv")
    numbers.to_csv(tmp_path / "without.csv", index=False)
    data, control = (table(str(tmp_path / name), features=None) for name in ("with.csv", "without.csv"))
    with pytest.warns(UserWarning, match="measurements, 2 in all: Unnamed: 0 has no name and is left out, age has ano"):
        data.setup("fit")
    for client in range(3):
        assert torch.equal(data.client_dataset(client)[:][0], control.client_dataset(client)[:][0])
    rome = numbers[numbers["hospital"] == "rome"][["age", "risk"]].to_numpy(dtype=np.float32)
    assert data.client_dataset(2)[:][0].tolist() == rome.tolist()
    listed = table(str(tmp_path / "with.csv"), features=["Unnamed: 0"])
    assert sorted(listed.client_dataset(2)[:][0].flatten().tolist()) == [0, 2, 5]


def test_warns_once_of_columns_that_are_no_measurements(tmp_path: Path) -> None:
    """On reading, the second column of the name outcome becomes outcome.1: it would give the class away."""
    (tmp_path / "my.csv").write_text(
        "hospital,id,ward,outcome,age,outcome,visits\nrome,7,3,1,40.5,1,2\noslo,9,3,0,50.5,0,2\nrome,4,3,0,60.5,0,3\n"
    )
    read = pd.read_csv(tmp_path / "my.csv")
    assert [name for name in read if read[name].nunique() == 1] == ["ward"]
    with pytest.warns(UserWarning, match="measurements") as caught:
        table(str(tmp_path / "my.csv"), features=None).setup("fit")
    assert [str(each.message) for each in caught] == [
        "columns that may be no measurements, 3 in all: id has another whole number in every row, outcome.1 has the "
        "target's values, ward has one value: list features to choose"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table(str(tmp_path / "my.csv"), features=["id", "ward"]).setup("fit")


def test_clients_of_a_file_are_what_is_written(tmp_path: Path) -> None:
    """The csv module of Python knows no numbers and no missing values; an empty field alone is missing."""
    text = "hospital,age,smokes,outcome\n007,40,1,well\n7,50,0,ill\n007,60,1,well\nNA,70,0,ill\n"
    (tmp_path / "my.csv").write_text(text)
    data = table(str(tmp_path / "my.csv"), test=str(tmp_path / "my.csv"))
    with pytest.warns(UserWarning, match="hospital: NA is taken for a name, not for a missing value"):
        assert data.client_names == sorted({row["hospital"] for row in csv.DictReader(text.splitlines())})
    assert ages(data) == [[40, 60], [50], [70]]
    assert [len(next(data.held_out_batches(client))[0]) for client in range(3)] == [2, 1, 1]
    (tmp_path / "my.csv").write_text(text.replace("NA,", ","))
    with pytest.raises(ConfigurationError, match="hospital to be complete, got 1 missing values"):
        table(str(tmp_path / "my.csv")).setup("fit")
    (tmp_path / "my.csv").write_text("hospital,age,smokes,outcome\n10,40,1,well\n 9,50,0,ill\n")
    assert table(str(tmp_path / "my.csv")).client_names == ["9", "10"]  # in the order of numbers


def test_a_test_tables_clients_may_be_of_another_type(tmp_path: Path) -> None:
    """Texts beside numbers: each client owns the rows that pandas counts for it."""
    coded = FRAME.assign(hospital=[30, 20, 30, 10, 20, 30])
    counts = coded["hospital"].value_counts().sort_index().tolist()
    for train, test in ((coded, coded.astype({"hospital": str})), (coded.astype({"hospital": str}), coded)):
        data = table(train, test=test)
        assert [len(next(data.held_out_batches(client))[0]) for client in range(3)] == counts == [1, 2, 3]


def test_names_of_columns_may_be_numbers() -> None:
    """As pandas numbers the columns of an array."""
    numbered = FRAME[["hospital", "age", "smokes", "outcome"]].set_axis(range(4), axis=1)
    same: dict[str, Any] = {"client": 0, "target": 3}
    assert ages(table(numbered, **same, features=[1, 2])) == ages(table())
    assert table(numbered, **same, features=None).class_names == ["dead", "ill", "well"]


def test_numbers_too_large_for_the_default_type_are_refused() -> None:
    """1e39 is finite in float64, in which NumPy and pandas compute, and inf in float32."""
    large = FRAME.assign(age=[1e39, 50, 60, 70, 80, 90])
    assert np.isfinite(large["age"]).all()
    for columns in ({}, {"target": "age", "features": ["smokes"]}):
        with pytest.raises(
            ConfigurationError, match=r"finite numbers of torch.float32, got nan or inf in age: fill or"
        ):
            table(large, **columns).setup("fit")
    torch.set_default_dtype(torch.float64)
    try:
        assert ages(table(large))[2] == [1e39, 60, 90]
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("target", "loss", "hint"),
    [
        ([0.0, 1.0] * 3, nn.functional.cross_entropy, "not floats: in a Table, task: classification makes classes of"),
        ([0, 1] * 3, nn.functional.binary_cross_entropy_with_logits, "takes floats, as a Table's task: regression"),
    ],
)
def test_a_loss_for_the_other_task_names_the_task(target: list[float], loss: Any, hint: str) -> None:
    class Other(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            logits = (batch[0] * self.w).float()
            return torch.as_tensor(loss(logits if loss is nn.functional.cross_entropy else logits[:, 0], batch[1]))

    data = table(FRAME.assign(sick=target), target="sick")
    with pytest.raises((ConfigurationError, RuntimeError), match=hint):
        trainer().fit(FederatedOrchestrator(Other(2)), datamodule=data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": "ward"}, "expected the train table to have the columns ward, outcome, age, smokes, got hosp"),
        ({"target": "death"}, "expected the train table to have the columns hospital, death"),
        ({"target": "outcom"}, r"columns \w+, outcom, .*; did you mean outcome\?$"),
        ({"features": ["height"]}, "expected the train table to have the columns .*height"),
        ({"test": FRAME[["age"]]}, "expected the test table to have the columns outcome, age, smokes, got age"),
        (
            {"features": ["age", "hospital"]},
            "columns of numbers, got other values in hospital, such as 'rome': enc",
        ),
        ({"features": ["age", "outcome"]}, "target and features must name each column once, got outcome, age, outcome"),
        ({"features": ["age", "age"]}, "target and features must name each column once, got outcome, age, age"),
        ({"train": FRAME[[*FRAME, "age"]]}, "train must have one column age, got two: rename one"),
        ({"train": FRAME[[*FRAME, "hospital"]]}, "train must have one column hospital, got two: rename one"),
        ({"test": FRAME[[*FRAME, "age"]]}, "test must have one column age, got two: rename one"),
        ({"train": FRAME[["hospital", "outcome"]], "features": None}, "to have columns of features, got none: add one"),
        (
            {"test": FRAME.assign(hospital="rome ")},
            "hospital: .* in test, got 6 of 6 rows of others, such as 'rome ': wri",
        ),
        (
            {"test": FRAME.assign(hospital=3)},
            "got 6 of 6 rows of others, such as .*3.*, or leave the column out of test",
        ),
        ({"target": ["outcome"]}, "expected columns of numbers, got other values in outcome"),
        ({"train": FRAME.iloc[:0]}, "expected the train table to have rows, got none"),
        (
            {"train": FRAME.assign(age=[1, None, 2, 3, 4, 5])},
            "expected finite numbers of torch.float32, got nan or inf in age: fill",
        ),
        ({"train": FRAME.assign(hospital=["a", None] * 3)}, "expected column hospital to be complete, got 3 missing"),
        ({"train": FRAME.assign(outcome=["a", None] * 3)}, "expected column outcome to be complete, got 3 missing"),
        ({"train": FRAME.assign(hospital=["a", 1] * 3)}, "expected column hospital to hold values of one type"),
        ({"train": [1, 2]}, "expected train to be a pandas DataFrame or the path of a CSV or parquet file, got list"),
        (
            {"train": "nowhere.csv"},
            "a CSV or parquet file in .*nowhere.csv, got 'No such.*point train .--data.train. to",
        ),
        ({"test": "nowhere.csv"}, "point test .--data.test. to such a file"),
        ({"test_share": 1.0}, r"expected test or a test_share in \[0, 1\), got test_share=1.0: set one"),
        ({"test_share": 0.5, "test": FRAME}, "got test_share=0.5 beside test"),
        (
            {"task": "regression"},
            "targets of numbers, got other values in outcome, such as 'well': set",
        ),
        ({"task": "ranking"}, "expected task to be regression, or classification .*, got task=ranking and"),
        ({"task": "classification", "target": ["age"]}, "classification of one target column, not a list, got task=cl"),
        ({"partition": Natural("hospital")}, "got .*Natural.* and client=hospital: give one"),
        (
            {"client": "client", "partition": IID()},
            "num_clients for a partition .*, got None with IID: set num_clients",
        ),
        ({"client": "client", "partition": Natural("ward")}, "expected the train table to have the columns ward, outc"),
        ({"partition": IID(), "num_clients": 2}, "got .*IID.* and client=hospital: give one"),
        ({"num_clients": 2}, "no column of clients, got 2 with client: leave num_clients out"),
        ({"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
    ],
)
def test_refuses_other_tables(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        table(**change).setup("fit")
    assert "\n" not in str(caught.value)


def test_refuses_a_file_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ConfigurationError, match="expected a CSV or parquet file in"):
        table(str(tmp_path / "my.csv")).setup("fit")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hospital;age;outcome\nrome;1;ill\n", "commas between the fields of .*my.csv, got semicolons: save"),
        (
            "hospital;age;outcome\nrome;1,5;ill\n",
            "commas between the fields of .*my.csv, got semicolons: save",
        ),
        (
            "hospital\tage\toutcome\nrome\t1\till\n",
            "commas between the fields of .*my.csv, got tabs: save the",
        ),
        (
            "hospital,age,outcome\n1,rome,1,ill\n2,rome,2,well\n",
            "rows with more fields than the 3 names: name",
        ),
        ('hospital,age,outcome\nrome,"1,5",ill\n', "got other values in age, such as '1,5': encode these columns"),
        (
            'hospital,age,outcome\nrome,1,"1,5"\n',
            "outcome to hold numbers or classes, got texts such as '1,5'",
        ),
        (
            'hospital,age,outcome\nrome,1,"1.234,5"\n',
            "got texts such as '1.234,5': write numbers alone",
        ),
        ("hospital,age,outcome\nrome,1,1.5\nrome,2,none yet\n", "got texts such as '1.5': write numbers alone"),
    ],
)
def test_a_file_that_may_mean_two_things_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        table(str(tmp_path / "my.csv"), features=["age"]).setup("fit")
    assert "\n" not in str(caught.value)


def test_a_task_makes_classes_of_texts_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text('hospital,age,outcome\nrome,1,"1,5"\nrome,2,"0,5"\n')
    data = table(str(tmp_path / "my.csv"), features=["age"], task="classification")
    assert data.class_names == ["0,5", "1,5"]
    with pytest.raises(ConfigurationError, match="targets of numbers, got other values in outcome, such as '1,5': set"):
        table(str(tmp_path / "my.csv"), features=["age"], task="regression").setup("fit")


def test_commas_at_the_ends_of_rows_move_no_column(tmp_path: Path) -> None:
    """Python's csv module counts one empty field more in each row; pandas would make the hospitals names of rows."""
    text = "hospital,age,smokes,outcome\nrome,40,1,well,\noslo,50,0,ill,\n"
    (tmp_path / "my.csv").write_text(text)
    data = table(str(tmp_path / "my.csv"))
    assert data.client_names == ["oslo", "rome"]
    assert ages(data) == [[50], [40]]


@pytest.mark.parametrize("column", ["hospital", "outcome"])
def test_a_large_file_may_hold_numbers_first_and_texts_later(column: str, tmp_path: Path) -> None:
    """Pandas reads a file in parts of 262,144 rows or fewer: of 300,000 rows the last one alone is a text."""
    fields = {"hospital": "1", "age": "2", "smokes": "0", "outcome": "0"}
    first, last = ",".join(fields.values()), ",".join((fields | {column: "z"}).values())
    (tmp_path / "my.csv").write_text("\n".join([",".join(fields), *[first] * 300_000, last]))
    data = table(str(tmp_path / "my.csv"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = data.client_names if column == "hospital" else data.class_names
    assert named == [fields[column], "z"]
    rows = [len(data.client_dataset(client)) for client in range(data.num_clients)]
    assert rows == ([300_000, 1] if column == "hospital" else [300_001])
    counts = data.class_counts()
    assert counts is not None
    assert counts.sum(0).tolist() == ([300_001] if column == "hospital" else [300_000, 1])
