"""Executor: the one class that a site runs for a server's jobs, which hands messages to the process in the foreground.

FLARE's own class could also be told by a job to run any command, or any script that is installed at the site.
"""

from __future__ import annotations

from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor

from fl_lightning.network.settings import ATTACH, HEARTBEAT, PAUSE, TASK


class Attached(ClientAPIExecutor):  # type: ignore[misc]  # FLARE has no type hints
    """Hands the job's messages to the process in the site's foreground; a job cannot set anything else."""

    def __init__(self) -> None:
        super().__init__(
            execution_mode="attach",
            attach_id=ATTACH,
            train_task_name=TASK,
            params_exchange_format="numpy",
            params_transfer_type="FULL",
            heartbeat_interval=HEARTBEAT,
            heartbeat_timeout=PAUSE,
        )
