"""The declarations of the features: each setting has an owner, and each feature a test and a row of the table."""

from __future__ import annotations

import ast

import pytest
from support.rooms import ROOT

from ewe.config.feature_table import FEATURES, STEPS, feature, module_names
from ewe.config.settings import SETTINGS, Config

# Groups whose settings concern the server, and settings of others that concern several features
SERVER_GROUPS = ("listening", "model", "operations", "http", "tls", "logs")
SHARED = {
    *("documentroot", "defaultindex", "indexes", "symlinks", "languages", "cache"),  # the files of a site
    *("program_timeout", "spool", "env", "pass_authorization", "development"),  # programs of every kind
    "proxy_protocol",  # connections: the header comes before TLS and HTTP, so no handler can read it
}
DECLARATIONS = [feature(module) for module in module_names()]


def test_each_setting_concerns_one_feature_or_the_server() -> None:
    owners: dict[str, list[str]] = {name: [] for name in SETTINGS}
    for each in DECLARATIONS:
        for setting in each.settings:
            owners[setting.name].append(each.name)
    for name, setting in SETTINGS.items():
        if setting.group in SERVER_GROUPS or name in SHARED:
            assert not owners[name], f"{name} is a setting of the server's, and {owners[name]} claims it"
            assert name in vars(Config), f"{name} is a setting of the server's: declare it in Config"
        else:
            assert len(owners[name]) == 1, f"{name} belongs to {owners[name] or 'no feature'}"
            assert name not in vars(Config), f"{name} is a setting of {owners[name]}: declare it there"


def test_features_have_names_of_their_own() -> None:
    names = [each.name for each in DECLARATIONS]
    assert len(names) == len(set(names))


def test_the_table_knows_settings_and_keys() -> None:
    for module, settings in FEATURES:
        assert set(settings) <= SETTINGS.keys() | {"always"}, module
    for key, step in STEPS.items():
        assert key in feature(step.module).keys


CORE_ROOMS = ("config", "http", "processors", "server", "sites", "streams")


def test_the_core_reads_no_setting_of_a_feature() -> None:
    """A feature reads its settings itself. Its declaration tells the server what follows from them."""
    of_features = {setting.name for each in DECLARATIONS for setting in each.settings}
    found: dict[str, set[str]] = {}
    for path in (ROOT / "ewe").rglob("*.py"):
        name = path.relative_to(ROOT / "ewe").as_posix()
        if "/" in name and name.split("/")[0] not in CORE_ROOMS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # The grammar knows no settings: `coder.compress` there is a method.
            if isinstance(node, ast.Attribute) and node.attr in of_features and not name.startswith("http/"):
                found.setdefault(name, set()).add(node.attr)
    assert not found, "read the setting in its feature, and declare what follows from it"


@pytest.mark.parametrize("module", [module for module, _ in FEATURES])
def test_a_feature_does_something(module: str) -> None:
    found = feature(module)
    parts = (
        found.provide,
        found.mounts,
        found.wrap,
        found.middleware,
        found.server_middleware,
        found.gateway,
        found.answer,
    )
    assert any(part is not None for part in parts)


def test_each_handler_explains_itself() -> None:
    """In place of an explanation, `ewe --explain` shows the name of a class, and ends there.

    A middleware passes the question on to the handler inside it, and First to each of its handlers.
    """
    silent = []
    for path in (ROOT / "ewe" / "features").rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ClassDef) and not {"Middleware", "First", "Protocol"} & {
                ast.unparse(base) for base in each.bases
            }:
                methods = {getattr(line, "name", "") for line in each.body}
                if "respond" in methods and "explain" not in methods:
                    silent.append(f"{path.name}: {each.name}")
    assert not silent
