"""The settings of users' directories (users.py), and of the file of settings in each (homes.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, COUNT_OR_0, FILE_NAME, unset

# fmt: off
USERDIR = Setting(None, unset(FILE_NAME), "the directory in each user's home whose files the URLs below"
                  " /~NAME/ name, such as public_html; empty: none", group="files",
                  key="userdir", after="defaultindex")
USERDIR_SETTINGS = Setting(False, BOOL, "read the file .ewe.toml in each user's directory: index, indexes,"
                           " error-pages, headers, auth", group="files", key="userdir-settings", after="userdir")
MIN_UID = Setting(1000, COUNT_OR_0, "the smallest uid whose user has such a directory; smaller ones are system"
                  " accounts", group="files", key="min-uid", after="userdir-settings")
# fmt: on
# The key of Plan.shared() for the handler of scripts on other machines (ewe.features.far_scripts)
FAR_SCRIPTS = "far-scripts"
SETTINGS = (USERDIR, USERDIR_SETTINGS, MIN_UID)
