"""serve and join: a run over gRPC has the bits of a run here; what is wrong is one line."""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lib.command import limit, process, refused, run

from fl_lightning.datamodules import Digits
from fl_lightning.network.carrier import GrpcServer
from fl_lightning.network.kits import make_kits, renew, server_kit, site_kit

from .test_carrier import free_port

SITES = ("anna", "berlin", "cork")
NAMES = ["--network.sites", "[anna,berlin,cork]"]
RUN = ["--config", "digits_gh.yaml", "--data.num_clients", "3", "--trainer.max_epochs", "4"]
# Two of three clients train at once, and one arrives in each step of the server; some have a model of two steps ago.
FEDBUFF = ["--config", "rules/fedbuff.yaml", "--data.num_clients", "3", "--trainer.max_epochs", "8"]
FEDBUFF += ["--data.participation", "1", "--data.sampler.busy", "2"]
LORA = ["--config", "adapters/vit_lora.yaml", "--data.num_clients", "3", "--trainer.max_epochs", "3"]
LORA += ["--trainer.callbacks+=GradientHarmonization"]
DEALT = ["--network.dealt", "true"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    make_kits(SITES, "localhost", folder, free_port())
    return folder


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def joined(kits: Path, *options: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start all sites with the options of a run, each in a process of its own."""
    processes = []
    for site in SITES:
        command = [
            str(Path(sys.executable).with_name("fl-lightning")),
            "join",
            *NAMES,
            "--network.kit",
            str(kits / site),
            *options,
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        yield processes
    finally:
        for site in processes:
            site.kill()
            site.wait()


def assert_as_here(over: Path, *options: str) -> None:
    """Compare a run over a network with one here: its metrics byte for byte, its weights bit for bit."""
    assert run("fit", *options, "--experiment", "here", "--trainer.devices", "1").status == 0
    here = Path("runs/here/version_0")
    assert (over / "metrics.csv").read_bytes() == (here / "metrics.csv").read_bytes()
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=False)["state_dict"] for run in (here, over)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value), name


def command_of(name: str, kit: Path, *options: str) -> list[str]:
    program = str(Path(sys.executable).with_name("fl-lightning"))
    return [program, name, *RUN, *NAMES, *DEALT, "--network.kit", str(kit), *options]


def wait_for(text: str, file: Path) -> None:
    """Wait until a process has said something."""
    limit = time.monotonic() + 120
    while not file.is_file() or text not in file.read_text():
        assert time.monotonic() < limit, f"no {text} in {file.read_text()}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_site_that_is_killed_gets_its_round_again(kits: Path, there: Path) -> None:
    """With all three sites needed, the round waits, and the run has the bits of one without the kill."""
    long = ["--trainer.max_epochs", "40"]
    started = []
    said = Path("serve.txt")
    try:
        with said.open("w") as output:
            serve = command_of("serve", kits / "server", *long, "--network.min_clients", "3", "--experiment", "served")
            started.append(subprocess.Popen(serve, stdout=output, stderr=subprocess.STDOUT))
        for site in SITES:
            join = command_of("join", kits / site, *long, "--network.min_clients", "3")
            started.append(subprocess.Popen(join, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for("round 3/40", said)
        started[-1].kill()
        started[-1].wait()
        wait_for("waits for 1 more of the sites that are gone (cork), until its deadline", said)
        started.append(subprocess.Popen(started[-1].args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for place in (0, 1, 2, 4):
            assert started[place].wait(180) == 0
    finally:
        for process_ in started:
            process_.kill()
            process_.wait()
    assert_as_here(Path("runs/served/version_0"), *RUN, *long)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(RUN, id="GH"),
        pytest.param(LORA, id="LoRA and GH", marks=pytest.mark.slow),
        pytest.param(FEDBUFF, id="FedBuff", marks=pytest.mark.slow),
    ],
)
def test_a_run_over_grpc_has_the_bits_of_a_run_here(options: list[str], kits: Path, there: Path) -> None:
    """Three sites over mutual TLS; each takes its own part of the digits."""
    with joined(kits, *options, *DEALT) as sites:
        serve = ["serve", *options, *NAMES, *DEALT, "--network.kit", kits / "server", "--experiment", "served"]
        served = process(*serve)
        assert served.returncode == 0, served.stderr
        for site in sites:
            said, _ = site.communicate(timeout=60)
            assert (site.returncode, said.splitlines()[-1]) == (0, "the server has no more rounds")
    over = Path("runs/served/version_0")
    assert_as_here(over, *options)
    told = json.loads((over / "sites.json").read_text())
    assert told["sites"] == list(SITES)
    assert [facts["client"] for facts in told["facts"]] == [0, 1, 2]


@pytest.mark.slow
def test_a_secure_run_over_grpc_is_that_of_a_run_here_but_for_rounding(kits: Path, there: Path) -> None:
    """Three sites that hide their updates; the server takes their sum."""
    secure = [*DEALT, "--trainer.callbacks", "[FedAvgM]", "--network.secure_aggregation", "true"]
    with joined(kits, *RUN, *secure) as sites:
        served = process(*["serve", *RUN, *NAMES, *secure, "--network.kit", kits / "server", "--experiment", "served"])
        assert served.returncode == 0, served.stderr
        for site in sites:
            said, _ = site.communicate(timeout=60)
            assert (site.returncode, said.splitlines()[-1]) == (0, "the server has no more rounds")
            assert re.search(
                r"sums as \w+ \([0-9a-f]{16}\) with \w+ \([0-9a-f]{16}\), \w+ \([0-9a-f]{16}\): the beginnings", said
            )
    plain = ["--trainer.callbacks", "[FedAvgM]", "--trainer.devices", "1"]
    assert run("fit", *RUN, *plain, "--experiment", "here").status == 0
    folders = [Path(f"runs/{name}/version_0/checkpoints/last.ckpt") for name in ("here", "served")]
    weights = [torch.load(path, weights_only=False)["state_dict"] for path in folders]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_full_disk_at_the_server_is_a_plain_line_at_the_sites(kits: Path, there: Path) -> None:
    """The checkpoint has 0.7 MB, of which torch says: unexpected pos."""
    with joined(kits, *RUN, *DEALT, "--once") as sites:
        with limit(resource.RLIMIT_FSIZE, 300_000):
            served = process("serve", *RUN, *NAMES, *DEALT, "--network.kit", kits / "server")
        assert served.returncode == 2
        for site in sites:
            said, _ = site.communicate(timeout=60)
            assert site.returncode == 2
            assert re.search(
                r"^fl-lightning: error: the server has ended before its last round: it ends with an error: "
                r"(File too large|No space left on device): free disk space; .*: join again to go on$",
                said,
                re.MULTILINE,
            ), said


@pytest.mark.slow
def test_a_full_disk_at_a_site_says_what_to_do(kits: Path, there: Path) -> None:
    """Ditto keeps 0.7 MB at each site."""
    ditto = [*RUN, *DEALT, "--trainer.callbacks", "[Ditto]", "--model.on_bad_update", "skip"]
    ditto += ["--network.deadline", "60"]
    with limit(resource.RLIMIT_FSIZE, 300_000), joined(kits, *ditto) as sites:
        with limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY):
            served = process("serve", *ditto, *NAMES, "--network.kit", kits / "server")
        assert "client 0 (anna) is left out: its site could not write what stays there: File too large" in served.stderr
        for name, site in zip(SITES, sites, strict=True):
            said, _ = site.communicate(timeout=60)
            kept = f"runs/digits_gh/site-{name}/kept"
            assert f"fl-lightning: error: File too large: {kept}: free disk space; join again" in said


@pytest.mark.slow
def test_a_run_goes_on_with_new_kits(there: Path) -> None:
    """All kits are renewed after two of four rounds; the run has the bits of one that was not stopped."""
    make_kits(SITES, "localhost", there / "kits", free_port())
    kept = ["--experiment", "served"]
    for rounds in ("2", "4"):
        options = [*RUN, "--trainer.max_epochs", rounds, *DEALT]
        with joined(there / "kits", *options) as sites:
            go_on = ["--ckpt_path", "last"] if rounds == "4" else []
            serve = ["serve", *options, *NAMES, "--network.kit", "kits/server", *kept, *go_on]
            served = process(*serve)
            assert served.returncode == 0, served.stderr
            for site in sites:
                said, _ = site.communicate(timeout=60)
                assert site.returncode == 0, said
        renew(["server", *SITES], there / "kits")
    assert_as_here(Path("runs/served/version_0"), *RUN)


def test_a_dry_run_says_what_would_be_sent(kits: Path, there: Path) -> None:
    said = run("join", *RUN, *NAMES, *DEALT, "--network.kit", kits / "berlin", "--dry_run")
    assert said.status == 0
    assert f"berlin would send to {site_kit(kits / 'berlin').address}, and connects nowhere now:" in said.out
    assert "536 training examples, [0, 1, 142, 0, 0, 102, 132, 0, 30, 129] of them by class" in said.out
    assert "in each round: its model or update, 167,178 numbers at most, and no buffers;" in said.out
    assert 'model.client.network: "fl_lightning.models.mlp.TwoNN"' in said.out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([*RUN, *NAMES], r"expected data of one client, this site's own, got 3 clients: set data\.num_cl"),
        (
            [*RUN, *NAMES, *DEALT, "--data.num_clients", "4"],
            "expected data of 3 clients, one for each of network.sites",
        ),
        (
            [*RUN, "--network.sites", "[oslo]"],
            r"expected the kit of one of the sites oslo \(network\.sites\)",
        ),
        ([*RUN, "--network.sites", "[]"], "expected network.sites to be the different names of the sites"),
        ([*RUN, *NAMES, "--network.deadline", "-1"], "network.deadline must be positive"),
        ([*RUN, *NAMES, "--network.min_clients", "0"], "network.min_clients must be at least 1"),
    ],
)
def test_what_is_wrong_at_a_site_is_one_line(kits: Path, there: Path, options: list[str], told: str) -> None:
    message = refused("join", *options, "--network.kit", kits / "anna")
    assert re.search(told, message), message


def test_a_table_of_several_clients_is_told_of_its_own_option(kits: Path, there: Path) -> None:
    """Its num_clients is for a partition."""
    Path("own.csv").write_text("client,age,ill\na,1,0\nb,2,1\n")
    Path("table.yaml").write_text(
        """
model:
  client:
    class_path: ImageClassifier
    init_args:
      num_classes: 2
      network: {class_path: LogisticRegression, init_args: {in_features: 1, num_classes: 2}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  class_path: Table
  init_args: {train: own.csv, target: ill, features: [age]}
"""
    )
    options = ["join", "--config", "table.yaml", *NAMES, "--network.kit", kits / "anna", "--dry_run"]
    assert "this site's own, got 2 clients: set data.client to null; or network.dealt" in refused(*options)
    said = run(*options, "--data.client", "null")
    assert "must be those of all sites: none: inputs are not scaled" in said.out, said.err


def test_a_certificate_that_expires_soon_is_told(there: Path) -> None:
    make_kits(SITES, "localhost", there, free_port(), days=30)
    said = run("join", *RUN, *NAMES, *DEALT, "--network.kit", "anna", "--dry_run")
    assert re.match(
        r"the certificate anna/site\.crt expires on 2.* UTC, in 29 days: fl-lightning keys --renew", said.out
    )


def test_a_kit_that_is_none_is_one_line(kits: Path, there: Path) -> None:
    assert "network.kit: expected str, got None: give --network.kit a value" in refused("join", *RUN, *NAMES, *DEALT)
    assert "expected a site's kit in nowhere" in refused("join", *RUN, *NAMES, *DEALT, "--network.kit", "nowhere")
    assert "expected a server's kit in" in refused("serve", *RUN, *NAMES, "--network.kit", kits / "anna")


@pytest.fixture
def _loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(data: Digits, stage: str | None = None) -> None:
        raise AssertionError("the data are loaded")

    monkeypatch.setattr(Digits, "setup", load)


@pytest.mark.usefixtures("_loads_nothing")
def test_a_damaged_kit_is_told_before_data_are_loaded(there: Path) -> None:
    make_kits(SITES, "localhost", there, free_port())
    Path("anna/site.crt").write_text("no certificate")
    options = [*RUN, *NAMES, *DEALT, "--network.kit", "anna"]
    assert "expected a certificate in anna/site.crt, got a damaged one" in refused("join", *options)
    assert "expected a certificate in anna/site.crt, got a damaged one" in refused("join", *options, "--dry_run")


@pytest.mark.usefixtures("_loads_nothing")
def test_a_server_of_another_authority_is_told_before_data_are_loaded(there: Path) -> None:
    port = free_port()
    for folder in ("ours", "theirs"):
        make_kits(SITES, "localhost", there / folder, port)
    with GrpcServer(server_kit(there / "theirs/server"), SITES, 1 << 20):
        message = refused("join", *RUN, *NAMES, *DEALT, "--network.kit", "ours/anna")
    assert f"the certificate of the server at localhost:{port} is of another authority than" in message


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_server_that_is_stopped_while_it_waits_leaves_nothing(name: str, kits: Path, there: Path) -> None:
    said = Path("serve.txt")
    with said.open("w") as output:
        serve = subprocess.Popen(command_of("serve", kits / "server"), stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for("waiting for anna, berlin, cork", said)
        serve.send_signal(getattr(signal, name))
        assert serve.wait(60) != 0
    finally:
        serve.kill()
        serve.wait()
    assert not Path("runs/digits_gh").exists()


@pytest.mark.parametrize("command", ["serve", "join"])
def test_the_help_names_the_networks_options(command: str) -> None:
    said = run(command, "--help")
    assert said.status == 0
    assert said.out.startswith(f"usage: fl-lightning {command} ")
    for option in ("kit", "sites", "deadline", "min_clients", "dealt", "server_data"):
        assert f"--network.{option} " in said.out
    words = " ".join(said.out.split())
    assert "(default 3600.0)" in words
    assert "null for no limit (default null)" in words
    assert words.count("(default") == 7  # kit and sites have none
