"""Kits: one folder for the server and one for each site, with its certificate, made by FLARE's provisioning."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError

PROJECT = "fl-lightning"
ORGANISATION = "fl_lightning"
ADMIN = "admin"  # folder of the kit that submits the job, in the server's kit
LAST_PORT = 65535
AUTHORITY = "authority"  # folder with the key that signs certificates
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
BUILDERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("workspace.WorkspaceBuilder", {}),
    ("static_file.StaticFileBuilder", {"config_folder": "config"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)


@dataclass(frozen=True)
class Kit:
    """Holds what a kit's files say.

    Attributes:
        folder: the kit.
        name: the name in the certificate.
        organisation: the organisation in the certificate.
        host: the server's host, as the kit's owner reaches it.
        port: the server's port.
    """

    folder: Path
    name: str
    organisation: str
    host: str
    port: int

    @property
    def startup(self) -> Path:
        """The folder of the certificate, its key, and the authority's certificate."""
        return self.folder / "startup"


def check_installed() -> None:
    """Refuse to go on without FLARE.

    Raises:
        ConfigurationError: FLARE is not installed.
    """
    if find_spec("nvflare") is None:
        raise ConfigurationError("expected NVIDIA FLARE to be installed: pip install fl-lightning[network]")


def provision(sites: Sequence[str], server_host: str, out: Path, port: int = 8002) -> None:
    """Make a kit for the server and one for each site; kits that are there already stay as they are.

    The key that signs certificates stays in ``out/authority``: with the same ``out``, sites may be added later. The
    kit with which the server's side submits its job is ``out/server/admin``.

    Args:
        sites: the sites' names.
        server_host: the host name or address by which the sites reach the server.
        out: the folder of the kits.
        port: the server's port.

    Raises:
        ConfigurationError: FLARE is not installed, or a name is taken twice, or none that FLARE takes, or there
            is no such port.
    """
    check_installed()
    if not 0 < port <= LAST_PORT:
        raise ConfigurationError(f"expected a port from 1 to {LAST_PORT}, got {port}")
    taken = {"server", ADMIN, AUTHORITY}
    for site in sites:
        if not NAME.fullmatch(site) or site in taken:
            raise ConfigurationError(
                f"expected sites' names of letters, digits, - and _, each once and none of server, {ADMIN} and "
                f"{AUTHORITY}, got {site!r}"
            )
        taken.add(site)
    from nvflare.lighter.provision import prepare_builders, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    project = {
        "api_version": 3,
        "name": PROJECT,
        "participants": [
            {
                "type": "server",
                "name": server_host,  # for a name of this machine itself, FLARE's server listens there alone
                "org": ORGANISATION,
                "fed_learn_port": port,
            },
            {"type": "admin", "name": "admin@fl-lightning.org", "org": ORGANISATION, "role": "project_admin"},
            *({"type": "client", "name": site, "org": ORGANISATION} for site in sites),
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{name}", "args": arguments} for name, arguments in BUILDERS],
    }
    authority = out / AUTHORITY
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        made = Provisioner(str(authority), prepare_builders(project)).provision(prepare_project(project))
    results = Path(made.get_result_location())
    (results / "admin@fl-lightning.org").rename(results / server_host / ADMIN)
    for made_as, name in [(server_host, "server"), *zip(sites, sites, strict=True)]:
        if not (out / name).exists():
            (results / made_as).rename(out / name)
            (out / name / "readme.txt").unlink(missing_ok=True)  # which tells of FLARE's own commands
    shutil.rmtree(results)


def server_kit(folder: Path) -> Kit:
    """Read a server's kit.

    Raises:
        ConfigurationError: the folder holds no server's kit.
    """
    config = _read(folder, "fed_server.json", "server")
    host, _, port = config["servers"][0]["service"]["target"].rpartition(":")
    return Kit(folder, *_subject(folder, "server"), host, int(port))


def site_kit(folder: Path) -> Kit:
    """Read a site's kit.

    Raises:
        ConfigurationError: the folder holds no site's kit, or the certificate is another site's.
    """
    config = _read(folder, "fed_client.json", "site")
    host, _, port = config["servers"][0]["service"]["target"].rpartition(":")
    kit = Kit(folder, *_subject(folder, "client"), host, int(port))
    named = config["client"].get("fqsn", kit.name).rpartition(".")[2]
    if named != kit.name:
        raise ConfigurationError(f"expected the certificate of site {named} in {folder}, got that of {kit.name}")
    return kit


def admin_kit(server: Path) -> Kit:
    """Read the kit that submits jobs: the folder admin in the server's kit, or one beside the server's kit.

    Raises:
        ConfigurationError: there is no such kit.
    """
    found = [server / ADMIN, *sorted(server.resolve().parent.iterdir())]
    for folder in found:
        if (folder / "startup/fed_admin.json").is_file():
            admin = _read(folder, "fed_admin.json", "server")["admin"]
            return Kit(folder, *_subject(folder, "client"), admin["host"], int(admin["port"]))
    raise ConfigurationError(f"expected the kit of an admin in {server / ADMIN} or beside {server}, got none")


def _read(folder: Path, name: str, whose: str) -> Any:
    path = folder / "startup" / name
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"expected a {whose}'s kit in {folder}, got no file {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"expected a {whose}'s kit in {folder}, got a damaged {path}: {error}") from error


def _subject(kit: Path, owner: str) -> tuple[str, str]:
    """Return the name and the organisation in a kit's certificate, which has a key and an authority."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = kit / f"startup/{owner}.crt"
    needed = {"certificate": certificate, "key": certificate.with_suffix(".key")}
    needed["authority's certificate"] = kit / "startup/rootCA.pem"
    for what, path in needed.items():
        if not path.is_file():
            raise ConfigurationError(f"expected the {what} in {path}, got no such file: copy the whole kit")
    try:
        subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"expected a certificate in {certificate}, got {error}") from error

    def value_of(identifier: Any) -> str:
        found = subject.get_attributes_for_oid(identifier)
        return str(found[0].value) if found else ""

    return value_of(NameOID.COMMON_NAME), value_of(NameOID.ORGANIZATION_NAME)


def make_workspace(kit: Kit, folder: Path, settings: Mapping[str, Any]) -> None:
    """Make a folder in which FLARE's process runs and writes its logs; the kit stays as it is.

    Args:
        kit: the kit.
        folder: the folder.
        settings: contents of the files that take the place of the kit's own settings, by name of file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    startup = folder / "startup"
    shutil.rmtree(startup, ignore_errors=True)
    startup.mkdir()
    for path in kit.startup.resolve().iterdir():
        (startup / path.name).symlink_to(path)  # FLARE does not look into linked folders
    local = folder / "local"
    shutil.rmtree(local, ignore_errors=True)
    if (kit.folder / "local").is_dir():
        shutil.copytree(kit.folder / "local", local)
    local.mkdir(exist_ok=True)
    for name, value in settings.items():
        (local / name).write_text(json.dumps(value, indent=2), encoding="utf-8")
