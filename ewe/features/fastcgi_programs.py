"""FastCGI programs that ewe starts and keeps running (setting `fastcgi-start`).

Read next: ewe/gateway/kept_programs.py, the base class; ewe/server/program_manager.py, which starts the processes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from ewe.features.fastcgi_settings import FASTCGI, FASTCGI_START
from ewe.gateway.kept_programs import KeptProgram, prepare_program_process

if TYPE_CHECKING:
    from ewe.config.settings import Config
    from ewe.gateway.kept_programs import ProcessHandle


class FastCGIProgram(KeptProgram):
    """A command that accepts FastCGI connections at its descriptor 0 (FastCGI specification section 2.2)."""

    setting = FASTCGI_START.key

    def __init__(self, where: str, count: int, command: str, path: str) -> None:
        """where: the extension or the path for which the program answers. Raises OSError."""
        self.where = where
        self.command = shlex.split(command)
        super().__init__(os.path.basename(self.command[0]), count, path)

    def completed(self, config: Config) -> Config:
        """Return a configuration in which `fastcgi` also names the program's socket."""
        return config.replace(self.setting, fastcgi=[*config[FASTCGI], f"{self.where}=unix:{self.path}"])

    def start(self, output: int) -> ProcessHandle:
        """Start the command, with the socket as descriptor 0, and `output` as 1 and 2. Raises OSError."""
        return subprocess.Popen(
            self.command, stdin=self.socket.fileno(), stdout=output, stderr=output, process_group=0,
            preexec_fn=prepare_program_process, restore_signals=True,
        )  # fmt: skip
