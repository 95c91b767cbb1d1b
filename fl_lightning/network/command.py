"""``fl-lightning serve`` and ``join``: the rounds of a run here, the training of each client at its site."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from fl_lightning.commands import counted
from fl_lightning.engine.checks import check_at_sites
from fl_lightning.engine.federation.batches import CPU
from fl_lightning.engine.rules.callback import FederatedCallback, federated
from fl_lightning.engine.sites.data import RemoteData, SiteData
from fl_lightning.engine.sites.facts import Facts, Start, Welcome, buffer_lines, sizes_of
from fl_lightning.engine.sites.secure.masks import Identity, Masks, SiteMasks
from fl_lightning.engine.sites.secure.sums import check_secure, has_scaler
from fl_lightning.engine.sites.site import Site, come
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.errors import ConfigurationError, TrainingError
from fl_lightning.files import whole
from fl_lightning.fit.allocator import keep_freed_memory
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.configs import NETWORK, resolve_configs
from fl_lightning.fit.messages import plainly
from fl_lightning.fit.own_data import begin_anew
from fl_lightning.inside import inside
from fl_lightning.network.alike import compared
from fl_lightning.network.carrier import GrpcConnection, GrpcServer
from fl_lightning.network.handshake import check_kit, look_at_server
from fl_lightning.network.kits import Kit, days_left, expiry, server_kit, site_kit
from fl_lightning.network.options import Network, own_options
from fl_lightning.network.statistics import Statistics, combine, statistics_of, write_statistics
from fl_lightning.network.survey import FIT, ask, ask_for_sum, tell, tell_end, tell_for_sum
from fl_lightning.runs.folder.files import SITES
from fl_lightning.runs.folder.lock import Holds, held
from fl_lightning.seeding import isolated

SMALLEST_LIMIT, MODELS = 1 << 20, 8  # bytes, and models, that a part of a message may have
SOON = 30  # days before the end of a certificate, from which on a line says so
FIRST_LOOK_S = 3.0  # for which a site looks for the server before it loads its data
WITHOUT_FOLDER = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "limit_val_batches": 0,
    "devices": 1,
}  # arguments of a Trainer that writes nothing


class _NetworkCLI(FederatedCLI):
    """A FederatedCLI that knows the sites of a federation."""

    own_groups: Mapping[str, type] = {NETWORK: Network}

    @property
    def network(self) -> Network:
        """The network's options."""
        options: Network = self.made(NETWORK)
        return options

    @property
    def told_settings(self) -> dict[str, Any]:
        """Collect the settings that must be the same at the server and at all sites, as both send them."""
        module = self.model.client
        forms = [(name, list(value.shape), str(value.dtype)) for name, value in module.state_dict().items()]
        named = compared(self.written_config)
        named["network.sites"] = self.network.sites
        named["network.dealt"] = self.network.dealt
        if self.network.secure_aggregation:
            named["network.secure_aggregation"] = True
        named["the module's parameters and buffers"] = hashlib.sha256(json.dumps(forms).encode()).hexdigest()[:16]
        named["version of fl-lightning"] = version("fl-lightning")
        plain: dict[str, Any] = json.loads(json.dumps(named, default=str))
        return plain

    @property
    def message_limit(self) -> int:
        """The largest number of bytes of a part of a message: some times those of the model, which rules send, too."""
        values = self.model.client.state_dict().values()
        model_bytes: int = sum(value.numel() * value.element_size() for value in values)
        return SMALLEST_LIMIT + MODELS * model_bytes

    def _check_secure(self) -> None:
        """Refuse what reads single updates, if there are none."""
        network = self.network
        if network.secure_aggregation:
            clients = {site: [client] for client, site in enumerate(network.sites)}
            check_secure(federated(self.trainer), self.model.arguments, clients, has_scaler(self.trainer))

    @override
    def _leaves_processes_open(self, trainer: Trainer) -> bool:
        return False


class ServeCLI(_NetworkCLI):
    """Runs the rounds here; the clients train at their sites."""

    @property
    @override
    def has_own_data(self) -> bool:
        return self.network.server_data

    @override
    def run(self, command: Callable[[], None]) -> None:
        network = self.network
        trainer = self.trainer
        # What cannot be at sites is refused before these are waited for.
        check_at_sites(federated(trainer), trainer.world_size, self.model.clients_at_once)
        self._check_secure()
        clients = {site: [client] for client, site in enumerate(network.sites)}
        known: dict[int, Facts] = {}
        if self.folder.is_taken:  # by a run that goes on; a new one takes a folder when all sites are there
            known = _read_facts(Path(self.folder.log_dir), network.sites)
        kit = server_kit(Path(network.kit))
        say = partial(self._say, trainer=trainer)
        with GrpcServer(kit, network.sites, self.message_limit, partial(print, flush=True)) as carrier:
            _say_expiry(kit)
            sites = Sites(
                carrier,
                clients,
                self.told_settings,
                network.deadline,
                network.min_clients,
                known,
                network.max_examples,
                say=say,
                stops=lambda: bool(self.stopping.stopped_by),
                secure=network.secure_aggregation,
            )
            say(f"waiting for {', '.join(network.sites)}")
            try:
                self._gather(sites)
                command()
            except Exception as error:
                sites.say_end(f"it ends with an error: {plainly(error) or error}")
                raise
            except BaseException:
                sites.say_end("it was stopped")
                raise
            if self.stopping.stopped_by:
                sites.say_end("it was stopped")

    def _gather(self, sites: Sites) -> None:
        """Wait for the sites; put what they have told of their data in the place of the training data."""
        names = self.network.sites
        try:
            sites.gather()
        except KeyboardInterrupt:
            print(f"waited for {', '.join(sites.missing)}; the same command waits again", file=sys.stderr)
            raise
        facts = [sites.facts[client] for client in range(len(names))]
        _write_facts(Path(self.folder.log_dir), names, facts)
        self.datamodule = RemoteData(self.datamodule, facts, names, loads=self.network.server_data)
        self.model.sites = sites


class AskCLI(_NetworkCLI):
    """Asks the sites for statistics of their data, and trains nothing.

    Args:
        args: the command line, with configs given as paths.
        file: the new file for the statistics.
    """

    has_own_data = False

    def __init__(self, args: Sequence[str], file: Path) -> None:
        if file.exists() or not file.absolute().parent.is_dir():
            raise ConfigurationError(f"expected --statistics to name a new file in a folder that is there, got {file}")
        self._file = file
        super().__init__(args)

    @override
    def without_folder(self, callbacks: Sequence[Callback]) -> dict[str, Any]:
        return {**WITHOUT_FOLDER, "callbacks": []}

    @override
    def run(self, command: Callable[[], None]) -> None:
        network = self.network
        say = partial(print, flush=True)
        told: dict[str, Statistics] = {}
        with GrpcServer(server_kit(Path(network.kit)), network.sites, self.message_limit, say) as carrier:
            say(f"waiting for the statistics of {', '.join(network.sites)}")
            try:
                if network.secure_aggregation:
                    together = ask_for_sum(carrier, network.sites, network.smallest, say)
                else:
                    told = ask(carrier, network.sites, say)
                    together = combine(told)
                write_statistics(self._file, self.datamodule, told, together)
            except Exception as error:
                tell_end(carrier, network.sites, str(error))
                raise
        say(f"{self._file}: the statistics of {counted(together.size, 'training example')}")


class JoinCLI(_NetworkCLI):
    """Trains one client here, for a server elsewhere.

    Args:
        args: the command line, with configs given as paths.
        dry: whether to say what would be sent, and to connect nowhere.
        once: whether to end when the server does, or is gone, in place of waiting for it.
        statistics: whether to tell statistics of the data, in place of training.
    """

    def __init__(self, args: Sequence[str], dry: bool = False, once: bool = False, statistics: bool = False) -> None:
        self._dry = dry
        self._once = once
        self._statistics = statistics
        super().__init__(args)

    @override
    def _parse_ckpt_path(self) -> None:
        """Check the kit, and the server's if the server is there, before data are loaded, which may take minutes."""
        self._kit = site_kit(Path(self.config["fit"].network.kit))
        check_kit(self._kit)
        _say_expiry(self._kit)
        if not self._dry:
            with suppress(OSError):  # the site waits for the server later
                look_at_server(self._kit, FIRST_LOOK_S)
        super()._parse_ckpt_path()

    @override
    def without_folder(self, callbacks: Sequence[Callback]) -> dict[str, Any]:
        self._name = self._kit.name
        self._client = self.network.client_of(self._name)
        config = self.config["fit"]
        self._folder = Path(config.trainer.default_root_dir, config.experiment, f"site-{self._name}")
        rules = [callback for callback in callbacks if isinstance(callback, FederatedCallback)]
        return {**WITHOUT_FOLDER, "callbacks": rules, "default_root_dir": str(self._folder)}

    @override
    def run(self, command: Callable[[], None]) -> None:
        network = self.network
        client = self._client
        if not self._statistics:
            self._check_secure()
        own = self.datamodule
        with isolated(CPU):
            own.prepare_data()
            own.setup("fit")
        row = _row_of(client, own.num_clients, network, self.written_config["data"].get("init_args", {}))
        if self._statistics:
            self._tell_statistics(row)
            return
        welcome = Welcome(self._name, [Facts.of(own, client, row)], self.told_settings)
        if self._dry:
            print(_would_send(welcome, self.model.client, network.secure_aggregation, self._kit.address))
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        print(f"{self._name}: client {client}, {counted(welcome.facts[0].size, 'training example')}", flush=True)
        kit = self._kit
        say = partial(print, flush=True)
        say(f"waiting for the server at {kit.address} …")
        with held(self._folder), GrpcConnection(kit, self.message_limit, self._once, say) as connection:
            say("connected: waiting until all sites are there …")
            start = self._come(connection, welcome)
            say("the server has let this site in")
            self.datamodule = SiteData(own, {client: row}, sizes_of(start), network.sites)
            veil = None
            if network.secure_aggregation:
                identity = Identity(kit.certificate, kit.key, kit.authority)
                veil = SiteMasks(self._name, network.sites, identity, network.deadline, say)
                veil.start(start.fit, start.sizes)
            site = Site(connection, welcome, self._folder / "kept", say, veil)
            self.trainer.callbacks += [_Stopping(), site]  # type: ignore[attr-defined]  # set outside Trainer.__init__
            command()
        say("the server has no more rounds")

    def _tell_statistics(self, row: int) -> None:
        """Tell the server the statistics of the data; or say what would be told."""
        network = self.network
        hidden = network.secure_aggregation
        told = statistics_of(self.datamodule, [row], 0 if hidden else network.smallest)
        kit = self._kit
        say = partial(print, flush=True)
        if self._dry:
            how = "in a sum over all sites alone" if hidden else "as it stands here"
            say(f"{self._name} would tell {kit.address} this, {how}, and connects nowhere now:")
            say("\n".join(f"- {TOLD_AS.get(name, name)}: {json.dumps(value)}" for name, value in asdict(told).items()))
            return
        say(f"waiting for the server at {kit.address} …")
        try:
            with GrpcConnection(kit, self.message_limit, once=True, say=say) as connection:
                if hidden:
                    masks = Masks(self._name, FIT, Identity(kit.certificate, kit.key, kit.authority))
                    tell_for_sum(connection, told, masks, network.sites, say)
                else:
                    tell(connection, told)
        except ConnectionError as error:
            raise TrainingError(f"{error}: join again") from error
        say("the server has the statistics")

    def _come(self, connection: GrpcConnection, welcome: Welcome) -> Start:
        """Tell the server that this site is there, as often as the connection is lost on the way."""
        while True:
            try:
                return come(connection, welcome, len(self.network.sites))
            except ConnectionError as error:
                connection.connect_again(str(error))


class _Stopping(Callback):
    """Ends a site at once at Ctrl-C (SIGINT) and SIGTERM, at which Lightning would wait for the end of a round."""

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        print("stopped", file=sys.stderr)
        raise SystemExit(128 + number)


def _say_expiry(kit: Kit) -> None:
    """Say when a kit's certificate expires, if that is soon."""
    days = days_left(kit)
    if days < SOON:
        print(
            f"the certificate {kit.path('crt')} expires on {expiry(kit)}, in {counted(days, 'day')}: fl-lightning keys "
            f"--renew {kit.name} makes a new kit",
            flush=True,
        )


def _row_of(client: int, found: int, network: Network, settings: Mapping[str, Any]) -> int:
    """Return the number of a site's client in its own data module, which has some settings."""
    expected = len(network.sites) if network.dealt else 1
    if found == expected:
        return client if network.dealt else 0
    if network.dealt:
        raise ConfigurationError(
            f"expected data of {expected} clients, one for each of network.sites, got {found}: set data.num_clients to "
            f"{expected}"
        )
    remedy = "let the data module have one client"
    if settings.get("client") is not None and settings.get("num_clients") is None:
        remedy = "set data.client to null"
    elif "num_clients" in settings:
        remedy = "set data.num_clients to 1"
    raise ConfigurationError(
        f"expected data of one client, this site's own, got {found} clients: {remedy}; or "
        "network.dealt to true, if every site has the data of all clients and takes its own part"
    )


TOLD_AS = {  # names of statistics, for people
    "values": "number of values",
    "squares": "sums of squared deviations from this site's mean",
}
SINGLE = (
    "its model or update, {params:,} numbers at most, and {buffers}; the numbers of its examples and steps, "
    "its mean training loss, the metrics that the module and the rules log on clients, and the vectors that rules send"
)
HIDDEN = (
    "its update, {params:,} numbers, the changes of {buffers}, its mean training loss and metrics, all "
    "hidden: the server gets the sum over three sites at least; in the open: the metrics' names, the numbers of "
    "batches that BatchNorm counts, and which values stay at the site"
)


def _would_send(welcome: Welcome, module: LightningModule, secure: bool, address: str) -> str:
    """Say what a site sends."""
    params = sum(value.numel() for value in module.parameters())
    lines = [f"    buffer {line}" for line in buffer_lines(module)]
    buffers = "the buffers below" if lines else "no buffers"
    (facts,) = welcome.facts
    scaling = "none: inputs are not scaled" if facts.scaling is None else str(facts.scaling)
    counts = "no numbers by class" if facts.class_counts is None else f"{list(facts.class_counts)} of them by class"
    return "\n".join(
        [
            f"{welcome.site} would send to {address}, and connects nowhere now:",
            f"- when it comes: its name; {facts.size:,} training examples, {counts}; the classes' names "
            f"({', '.join(facts.class_names or ()) or 'none'}); a hash of the data ({facts.fingerprint})",
            f"- mean and standard deviation that scale inputs, which must be those of all sites: {scaling}",
            f"- in each round: {(HIDDEN if secure else SINGLE).format(params=params, buffers=buffers)}",
            *lines,
            "- of an error, its type and the class that raised it",
            "- when it comes, these settings, too, which must be the server's (and those that are null or false):",
            *(f"    {name}: {json.dumps(value)}" for name, value in welcome.settings.items() if value),
        ]
    )


def _read_facts(folder: Path, sites: Sequence[str]) -> dict[int, Facts]:
    """Read what the sites have told in an earlier part of a run; empty for a new run.

    Raises:
        ConfigurationError: the run had other sites.
    """
    path = inside(folder, SITES)
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        before, facts = content["sites"], [Facts(**fact) for fact in content["facts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is damaged ({error}): restore it from a copy, or begin a new run") from None
    if before != list(sites):
        raise ConfigurationError(
            f"expected network.sites to be {before}, as when the run began, got {list(sites)}: a client's number "
            "belongs to one site"
        )
    return {fact.client: fact for fact in facts}


def _write_facts(folder: Path, sites: Sequence[str], facts: Sequence[Facts]) -> None:
    content = {"sites": list(sites), "facts": [asdict(fact) for fact in facts]}
    with whole(inside(folder, SITES)) as part:
        part.write_text(json.dumps(content, indent=2), encoding="utf-8")


def command(args: Sequence[str]) -> int:
    """Run ``serve …`` or ``join …``.

    Returns:
        The exit status: 0, or 128 and the number of the signal that stopped a fit.
    """
    keep_freed_memory()
    options, passed_on = own_options(args)
    sys.argv[1:] = [args[0], *passed_on]
    given = begin_anew(resolve_configs(["fit", *passed_on]))
    if args[0] == "join":
        torch.set_num_threads(1)
        JoinCLI(given, **vars(options))
        return 0
    if options.statistics is not None:
        AskCLI(given, options.statistics)
        return 0
    with Holds() as holds:
        cli = ServeCLI(given, holds)
    return 128 + cli.stopping.stopped_by if cli.stopping.stopped_by else 0
