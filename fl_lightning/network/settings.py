"""Settings of FLARE's processes and of the job, which holds no code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ATTACH = "fl-lightning"  # name by which the process in a site's foreground and the job find each other
RELAY = "fl_lightning.network.relay.Relay"
EXECUTOR = "fl_lightning.network.executor.Attached"
TASK = "train"
HEARTBEAT = 2  # seconds between two signs of life of a site
SILENCE = 8  # seconds without a sign of life after which a site is gone; FLARE looks every 5 seconds
PAUSE = 30  # seconds without a sign of life of the process in a site's foreground, after which the site is gone
FETCH = 0.2  # seconds between two questions of a site for a message; each costs CPU time while nothing happens

# What the server's administrator may do at a site: submit and end jobs without code, and look at their state.
PERMISSIONS = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {
            "submit_job": "any",
            "manage_job": "n:submitter",
            "view": "any",
            "operate": "none",
            "shell_commands": "none",
            "clone_job": "none",
            "download_job": "none",
            "byoc": "none",
            "server-predeployed-flwr": "none",
        }
    },
}


def site_settings(rendezvous: Path) -> dict[str, Any]:
    """Return a site's settings, by name of file.

    Args:
        rendezvous: the folder in which the process in the foreground and the job find each other.
    """
    return {
        "authorization.json": PERMISSIONS,
        "comm_config.json": {
            "client_api_attach": {
                "scheme": "shared-file",
                "resources": {"root_dir": str(rendezvous), "connection_security": "clear"},
            }
        },
        "resources.json": {
            "format_version": 2,
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [EXECUTOR],
            "allow_log_streaming": False,
            "client": {"retry_timeout": 30, "compression": "Gzip"},
            "components": [
                _component(
                    "resource_manager",
                    "resource_managers.gpu_resource_manager.GPUResourceManager",
                    {
                        "num_of_gpus": 0,
                        "mem_per_gpu_in_GiB": 0,
                    },
                ),
                _component("resource_consumer", "resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
                _component("process_launcher", "job_launcher.client_process_launcher.ClientProcessJobLauncher"),
            ],
        },
    }


def server_settings(folder: Path) -> dict[str, Any]:
    """Return the server's settings, by name of file.

    Args:
        folder: the folder in which FLARE keeps jobs.
    """
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    return {
        "authorization.json": PERMISSIONS,
        "resources.json": {
            "format_version": 2,
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [RELAY],
            "servers": [
                {
                    "admin_storage": "transfer",
                    "max_num_clients": 1000,
                    "heart_beat_timeout": SILENCE,
                    "admin_timeout": 10.0,
                }
            ],
            "snapshot_persistor": {
                "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
                "args": {
                    "uri_root": "/",
                    "storage": {"path": storage, "args": {"root_dir": str(folder / "snapshots"), "uri_root": "/"}},
                },
            },
            "components": [
                _component(
                    "job_scheduler",
                    "job_schedulers.job_scheduler.DefaultJobScheduler",
                    {
                        "max_jobs": 1000,
                        "min_schedule_interval": 1.0,
                        "max_schedule_interval": 10.0,
                    },
                ),
                {
                    "id": "job_manager",
                    "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                    "args": {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"},
                },
                {"id": "job_store", "path": storage},
                _component("process_launcher", "job_launcher.server_process_launcher.ServerProcessJobLauncher"),
            ],
        },
    }


def _component(name: str, path: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": name, "path": f"nvflare.app_common.{path}", "args": arguments or {}}


def attach_profile(site: str, rendezvous: Path) -> dict[str, Any]:
    """Return the profile with which the process in a site's foreground attaches to the job.

    Args:
        site: the site's name.
        rendezvous: the folder in which they find each other.
    """
    return {
        "schema_version": 1,
        "execution_mode": "attach",
        "attach_id": ATTACH,
        "site_name": site,
        "rendezvous_dir": str(rendezvous),
        "job_wait_timeout": None,
    }


def write_job(folder: Path, address: Path, sites: Sequence[str]) -> None:
    """Write a job for some sites.

    Args:
        folder: the job's folder.
        address: path of the server's socket.
        sites: the sites' names.
    """
    files = {
        "meta.json": {
            "name": folder.name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"relay": ["server"], "site": list(sites)},
        },
        "relay/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": FETCH},
            "workflows": [{"id": "relay", "path": RELAY, "args": {"address": str(address), "name": folder.name}}],
            "components": [],
        },
        "site/config/config_fed_client.json": {
            "format_version": 2,
            "default_task_fetch_interval": FETCH,
            "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
            "components": [],
        },
    }
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2), encoding="utf-8")
