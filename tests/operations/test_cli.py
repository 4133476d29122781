"""The command, up to the point where the server takes over."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support import web

from ewe import __version__, cli
from ewe.config.settings import SETTINGS, Config
from ewe.features.cgi_settings import CGI_PATH
from ewe.features.markdown_settings import MARKDOWN
from ewe.features.xswitch_command import roots_of
from ewe.streams.listener import StartError

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["serial", "fork", "prefork", "thread", "pool", "asyncio"]


COMMAND_LINE = list(cli.command_line()._option_string_actions)


class UnknownModel(ValueError):
    pass


def find(name: str) -> type:
    if name not in MODELS and ":" not in name:
        raise UnknownModel(f'no model "{name}"')
    return object


class Server(ModuleType):
    """Stands for ewe.server.run: keeps what it was asked to serve."""

    def __init__(self) -> None:
        super().__init__("ewe.server.run")
        self.configs: list[Config] = []
        self.answer: Callable[[], int] = lambda: 0

    def serve(self, config: Config, reread: object = None) -> int:
        self.configs.append(config)
        return self.answer()


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A directory with a site in it, no settings from outside, a registry and a server that only pretend."""
    for name in [*os.environ]:
        if name.startswith("EWE_") or name in ("PORT", "WEB_CONCURRENCY"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("htdocs").mkdir()
    base = ModuleType("ewe.processors.base")
    flags = {"-n": "serial", "-f": "fork", "-t": "thread", "-p": "pool", "-a": "asyncio"}
    vars(base).update(FLAGS=flags, names=lambda: MODELS, model_named=find, UnknownModel=UnknownModel)
    processors = ModuleType("ewe.processors")
    vars(processors).update(base=base, __path__=[])
    server = Server()
    preflight = ModuleType("ewe.server.preflight")
    vars(preflight).update(examine=lambda config: ([], []))
    for module in (processors, base, server, preflight):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return server


def configured(server: Server, *argv: str) -> Config:
    assert cli.main(argv) == 0
    return server.configs.pop()


def complaint(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    """The one line that the command says when it fails."""
    assert cli.main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ewe: ")
    assert err.count("\n") == 1
    return err.removeprefix("ewe: ").rstrip("\n")


# The command of 2006.


@pytest.mark.parametrize(
    ("argv", "model", "port"),
    [
        ("", "pool", 4000),
        ("8080", "pool", 8080),
        ("-p 8080", "pool", 8080),
        ("-f 8080", "fork", 8080),
        ("8080 -t", "thread", 8080),
        ("-n", "serial", 4000),
        ("-a --port 8080", "asyncio", 8080),
        ("-a --port=8080 8080", "asyncio", 8080),
        ("--model prefork --host ::1 8080", "prefork", 8080),
        ("--concurrency none", "serial", 4000),
        ("-f --model fork -f", "fork", 4000),
        ("--port 08080 8080", "pool", 8080),
        ("--model mine:Rope", "mine:Rope", 4000),
        ("--port 1 --port 8080", "pool", 8080),
    ],
)
def test_model_and_port(server: Server, argv: str, model: str, port: int) -> None:
    config = configured(server, *argv.split())
    assert (config.concurrency, config.port) == (model, port)


@pytest.mark.parametrize("argv", ["-f -t", "-ft", "-f --model thread", "--model fork --concurrency thread"])
def test_two_models_at_once(capsys: pytest.CaptureFixture[str], argv: str) -> None:
    assert complaint(capsys, *argv.split()) == "2 models at once: fork and thread"


def test_a_flag_is_stronger_than_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EWE_MODEL", "thread")
    config = configured(server, "-f")
    assert (config.concurrency, config.origin("model")) == ("fork", "command line")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("8080 --port 8081", "two ports at once: 8081 and 8080"),
        ("8080 9090", '"9090": one port is enough, and there is no directory of that name'),
        ("-1", 'port "-1": expected a port number, 0 to 65535'),
        ("-- -x", 'port "-x": expected a port number, 0 to 65535'),
        ("--port 65536", '--port "65536": expected a port number, 0 to 65535'),
        ("--threads 0", '--threads "0": expected a whole number from 1, or a range such as 8..64'),
        (
            "--threads 64..8",
            '--threads "64..8": expected a whole number from 1, or a range such as 8..64 (64 is above 8)',
        ),
        (
            "--threads 0..3",
            '--threads "0..3": expected a whole number from 1, or a range such as 8..64 (0 workers serve nobody)',
        ),
        ("--threads 8..", '--threads "8..": expected a whole number from 1, or a range such as 8..64'),
        (
            "--workers a..b",
            '--workers "a..b": expected auto, default, a whole number from 1, or a range such as 8..64',
        ),
        (
            "--threads 1..5000",
            '--threads "1..5000": expected a whole number from 1, or a range such as 8..64 (5000 is above 4096)',
        ),
        ("--prot 8080", 'unknown option --prot; did you mean "--port"?'),
        ("--prot=8080", 'unknown option --prot; did you mean "--port"?'),
        ("--no-index", 'unknown option --no-index; did you mean "--no-indexes"?'),
        ("-port 8080", 'unknown option -port; did you mean "--port"?'),
        ("--bac 3", 'unknown option --bac; did you mean "--backlog"?'),
        ("--model frok", 'no model "frok"; did you mean "fork"? (command line)'),
        ("--bind a:1 8080", "--bind replaces --host and a port: give one or the other"),
        ("--config none.toml", "cannot read none.toml: there is no such file"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], argv: str, message: str) -> None:
    assert complaint(capsys, *argv.split()) == message


@pytest.mark.parametrize("argv", ["--port", "--indexes=no", "--config", "-p=3"])
def test_wrong_usage_in_the_words_of_argparse(capsys: pytest.CaptureFixture[str], argv: str) -> None:
    assert "argument " in complaint(capsys, argv)


def test_a_registry_may_suggest_a_model_by_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> type:
        raise UnknownModel(f'{name} is no model; did you mean "fork"?')

    monkeypatch.setattr(sys.modules["ewe.processors.base"], "model_named", find)
    assert complaint(capsys, "--model=frok") == 'frok is no model; did you mean "fork"? (command line)'


EXAMPLES = {
    "asgi": "/blog=blog:app",
    "browser-edit": "shop.goods",
    "browser-query": "log/slow=SELECT 1",
    "compress-codings": "gzip",
    "database": "log=access.db",
    "env": "LANG=C",
    "fastcgi": ".php=localhost:1",
    "fastcgi-affinity": "at",
    "fastcgi-authorizer": "/a=localhost:1",
    "fastcgi-start": ".php=2:php-cgi",
    "languages": "en",
    "proxy": "/=http://localhost:1",
    "scgi": "/scgi=localhost:1",
    "trusted-proxies": "127.0.0.1",
    "status": "/ewe-status",
    "uwsgi": "/uwsgi=localhost:1",
    "mount": "/docs=ewe.features.markdown.manual:Manual",  # it is loaded
    "wsgi": "/wiki=wiki:app",
}


def test_every_setting_has_its_flags(server: Server) -> None:
    for setting in SETTINGS.values():
        for key in setting.keys:
            if isinstance(setting.default, bool):
                assert getattr(configured(server, f"--no-{key}"), setting.name) is False
                argv = [f"--no-{key}", f"--{key}"]
            elif setting.name == "documentroot":
                argv = [f"--{key}", "htdocs"]
            elif setting.name in ("cgi_path", "libcgi_path"):
                argv = [f"--{key}", "."]
            else:
                argv = [f"--{key}", setting.show(setting.default) or EXAMPLES.get(key, "localhost:1")]
            assert configured(server, *argv).origin(setting.name) == "command line"


def test_bind_may_be_repeated(server: Server) -> None:
    assert configured(server, "--bind", "a:1", "--bind=unix:/x").bind == ("a:1", "unix:/x")


# Options that only look.


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ewe {__version__}\n"


@pytest.mark.parametrize("columns", ["40", "200"])
def test_help_fits_and_tells_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.main(["-h", "all"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: ewe [-n | -f | -t | -p | -a] [option ...] [port] [directory]\n")
    assert max(map(len, text.splitlines())) < 80
    assert text.isascii()
    assert "\x1b" not in text
    told = " ".join(text.split())
    for setting in SETTINGS.values():
        default = setting.show(setting.default) or "none"
        if len(default) > cli.MAX_DEFAULT_CHARS:
            continue
        assert f"[{default}; {setting.variable}]" in text, "a default and its variable stay together"
        assert all(re.search(rf"^ .*--{key}\b", text, re.M) for key in setting.keys)
    assert f"Models: {', '.join(MODELS)}." in told


def test_help_is_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """In 24 lines of 80 columns: the options that people use first, and a reference to the others."""
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) < 80 and "ewe --help all" in text
    for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", text):
        assert option in [*COMMAND_LINE, "--help"], option
    assert all(group in text for group in ("tls", "files", "model"))
    assert cli.main(["--help", "tls"]) == 0
    text = capsys.readouterr().out
    assert "--tls-cert" in text and "--port" not in text
    assert complaint(capsys, "--help", "sheep").startswith('--help "sheep": there is help for all, listening')


def test_a_directory_without_an_option(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory's files are served, and no programs: neither those below it, nor those of this directory."""
    for name in ("cgi-bin", "other/cgi-bin", "8080"):
        Path(name).mkdir(parents=True)
    for argv in ("other 8081", "8081 other", "other --port 8081", "-p 8081 ./other"):
        config = configured(server, *argv.split())
        assert (config.port, Path(config.documentroot)) == (8081, Path("other"))
        assert not os.path.isdir(config[CGI_PATH]) and config[MARKDOWN] is False
        assert roots_of(config) == [os.path.realpath("other")]  # X-Switch is told of no /dev/null
    assert configured(server, "8080").documentroot == "htdocs"  # a number is a port
    assert configured(server, "./8080").documentroot == "./8080"
    assert configured(server, "other", "--cgi-path", "cgi-bin")[CGI_PATH] == "cgi-bin"
    capsys.readouterr()
    said = complaint(capsys, "nowhere/here")
    assert said == '"nowhere/here": there is no such directory'
    (tmp_path / "a.toml").touch()
    assert complaint(capsys, f"{tmp_path}/a.toml").endswith(
        "is a file: name its directory, or write --config for settings"
    )
    assert (
        complaint(capsys, "other", "8080", "htdocs") == '"htdocs": one directory is enough, there is "other"'
    )
    said = complaint(capsys, "other", "--documentroot", "htdocs")
    assert said == "two directories at once: htdocs (--documentroot) and other"


def test_xswitch_runs_scripts_of_the_directories_in_the_settings_alone(
    server: Server, tmp_path: Path
) -> None:
    """A dollar sign in a name does not widen the directory; only a variable of `alias` ends it."""
    for name in ("a$b/c", "d/e", "f$g"):
        Path(name).mkdir(parents=True)
    lines = ['documentroot = "/dev/null"', 'cgi-path = "/dev/null"', "[[site]]"]
    for number, key in enumerate(('alias = "a$$b/c"', 'alias = "d/e/$1.php"', 'root = "f$g"')):
        lines += ["[[site.location]]", f'pattern = "^/{number}(.*)"', key]
    Path("ewe.toml").write_text("\n".join(lines))
    config = Config.load(environ={}, file="ewe.toml")
    assert roots_of(config) == [os.path.realpath(tmp_path / name) for name in ("a$b/c", "d/e", "f$g")]


def test_this_directory_is_served_if_it_has_an_index(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("htdocs").rmdir()
    assert Path(configured(server).documentroot) == ROOT / "htdocs"
    assert "`ewe .` serves this directory" in capsys.readouterr().err
    Path("index.html").write_text("mine")
    assert configured(server).documentroot == "."
    assert "serving this directory itself" in capsys.readouterr().err


def test_print_config_shows_origins_and_can_be_read_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text('# mine\nlog-format = "%h \\"%r\\" \\\\ é"\nidle = 0.5\n')
    monkeypatch.setenv("EWE_DOCUMENTROOT", "2006")
    argv = ["--config", "mine.toml", "--print-config", "-f", "--no-indexes", "--bind", "a:1"]
    assert cli.main([*argv, "--bind", "unix:/x y"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^idle = \"500ms\" +# mine\.toml line 3$", text, re.M)
    assert re.search(r'^documentroot = "2006" +# EWE_DOCUMENTROOT$', text, re.M)
    assert re.search(r'^concurrency = "fork" +# command line$', text, re.M)
    assert re.search(r'^# workers = "default" +# default$', text, re.M)
    uncommented = re.sub(r"^# (?=[a-z_-]+ = )", "", text, flags=re.M)
    assert tomllib.loads(uncommented).keys() == {setting.key for setting in SETTINGS.values()}
    Path("ewe.toml").write_text(text)
    expected = Config.load(
        [("model", "fork"), ("indexes", False), ("bind", ["a:1", "unix:/x y"])], file="mine.toml"
    )
    again = Config.load(environ={})
    for name in SETTINGS:
        assert getattr(again, name) == getattr(expected, name), name


def reread(text: str, capsys: pytest.CaptureFixture[str], server: Server) -> Config:
    """Return what a start takes from a file with this text."""
    Path("printed.toml").write_text(text)
    found = configured(server, "--config", "printed.toml")
    capsys.readouterr()
    return found


# Values that are hard to write in a file, besides EXAMPLES
AWKWARD = {
    "browser-query": "log/slow=SELECT 1,\n'\"\\'",
    "env": 'LIST=a, "b", \\c',
    "log-format": '%h\t"%r" \\ é #',
}


@pytest.mark.parametrize("key", [None, *(setting.key for setting in SETTINGS.values())])
def test_what_is_printed_of_a_setting_starts_the_same_server(
    key: str | None, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A default keeps its meaning: a directory of programs that no source names may be missing."""
    argv: list[str] = []
    if key is not None:
        setting = next(each for each in SETTINGS.values() if each.key == key)
        if isinstance(setting.default, bool):
            argv = [f"--{key}" if not setting.default else f"--no-{key}"]
        elif setting.name.endswith(("documentroot", "cgi_path")):
            argv = [f"--{key}", "."]
        else:
            shown = setting.show(setting.default) or EXAMPLES.get(key, "localhost:1")
            argv = [f"--{key}", AWKWARD.get(key, shown)]
    assert cli.main([*argv, "--print-config"]) == 0
    printed = capsys.readouterr().out
    expected, again = configured(server, *argv), reread(printed, capsys, server)
    for name in SETTINGS:
        assert getattr(again, name) == getattr(expected, name), name
        assert (again.origin(name) == "default") is (expected.origin(name) == "default"), name


def test_what_is_printed_of_a_directory_without_programs_has_none(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cgi-bin").mkdir()
    assert cli.main(["htdocs", "--print-config"]) == 0
    again = reread(capsys.readouterr().out, capsys, server)
    assert not os.path.isdir(again[CGI_PATH]) and again.documentroot == "htdocs"


def test_check_config(capsys: pytest.CaptureFixture[str], server: Server) -> None:
    assert cli.main(["--check-config", "--documentroot", "later"]) == 1
    assert capsys.readouterr().err == 'ewe: document root "later" (command line) is not a directory\n'
    assert cli.main(["--check-config"]) == 0
    assert capsys.readouterr().out == "configuration ok (no file)\n"
    Path("ewe.toml").write_text("port = 1")
    assert cli.main(["--check-config"]) == 0
    assert capsys.readouterr().out == "configuration ok (ewe.toml)\n"
    Path("ewe.toml").write_text("port = 1\nmodel = 'theard'")
    message = complaint(capsys, "--check-config")
    assert message == 'no model "theard"; did you mean "thread"? (ewe.toml line 2)'
    Path("ewe.toml").write_text("prot = 1")
    assert complaint(capsys, "--check-config").startswith('ewe.toml line 1: unknown key "prot"')
    assert server.configs == []


@pytest.mark.starts_processes
def test_a_path_that_is_no_text_can_be_printed() -> None:
    """An argument may be any bytes; ewe prints it as text all the same."""
    run = subprocess.run(
        [*COMMAND, "--print-config", "--logfile", b"\xff"],
        capture_output=True,
        env=dict(os.environ, PYTHONUTF8="1"),
    )
    assert run.returncode == 0
    assert b"\\udcff" in run.stdout
    assert run.stderr == b""


# The command in a process of its own, with the same pretended registry.
COMMAND = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); import types\n"
    "base = types.ModuleType('ewe.processors.base')\n"
    "vars(base).update(FLAGS={}, names=list, model_named=str, UnknownModel=KeyError)\n"
    "processors = types.ModuleType('ewe.processors'); processors.base = base\n"
    "preflight = types.ModuleType('ewe.server.preflight'); preflight.examine = lambda config: ([], [])\n"
    "sys.modules['ewe.server.preflight'] = preflight\n"
    "sys.modules.update({'ewe.processors': processors, 'ewe.processors.base': base})\n"
    "from ewe.cli import main; sys.exit(main())",
]


@pytest.mark.starts_processes
@pytest.mark.parametrize("option", ["--help", "--version", "--print-config", "--check-config"])
def test_who_asked_may_have_read_enough(option: str) -> None:
    assert without_a_reader([*COMMAND, option]) == (0, b"")


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("module", "arguments", "status"),
    [
        ("ewe.cli", "--print-config", 0),
        ("ewe.xswitch.cli", "--print-config", 1),
        ("ewe_classroom.grader.cli", "--list", 1),
        ("ewe_classroom.course.cli", "list", 1),
        ("ewe_explore.cli", "--help", 0),
        ("ewe_lab.cli", "list", 0),
        ("ewe.config.__main__", "", 0),
        ("ewe.xswitch.settings_page", "", 0),
        ("ewe_lab.experiments.__main__", "", 0),
        ("ewe_watch.cli", "--help", 0),
        ("ewe.xswitch.cli", "--version", 0),
        ("ewe.database.cli", "--version", 0),
        ("ewe_lab.cli", "--version", 0),
        ("ewe_classroom.grader.cli", "--version", 0),
    ],
)
def test_no_command_complains_when_nobody_reads_it(module: str, arguments: str, status: int) -> None:
    code = f"import sys; from {module} import main; sys.exit(main())"
    assert without_a_reader([sys.executable, "-c", code, *arguments.split()]) == (status, b"")


@pytest.mark.starts_processes
@pytest.mark.needs("/dev/full")
@pytest.mark.parametrize(
    ("name", "module", "arguments"),
    [
        ("ewe", "ewe.cli", "--print-config"),
        ("ewe-course", "ewe_classroom.course.cli", "list"),
        ("ewe-watch", "ewe_watch.cli", "--version"),
        ("python -m ewe.config", "ewe.config.__main__", ""),
    ],
)
def test_a_full_disk_behind_the_output_is_one_line(name: str, module: str, arguments: str) -> None:
    code = f"import sys; from {module} import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments.split()]
    with Path("/dev/full").open("wb") as full:
        says = f"{name}: cannot write the output: No space left on device\n"
        assert with_output(full.fileno(), command) == (1, says.encode())


def without_a_reader(command: list[str]) -> tuple[int, bytes]:
    """Run a command without a reader of its output; return the exit status, and the text on standard error."""
    read, write = os.pipe()
    os.close(read)
    try:
        return with_output(write, command)
    finally:
        os.close(write)


def with_output(descriptor: int, command: list[str]) -> tuple[int, bytes]:
    """Run a command with this standard output; return the exit status, and the text on standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.run(
        command, stdout=descriptor, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=environment, timeout=60
    )
    return run.returncode, run.stderr


# The site.


def test_what_the_server_says_is_passed_on(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = lambda: 4
    assert cli.main([]) == 4

    def fail() -> int:
        raise StartError("port 4000 is taken")

    server.answer = fail
    assert complaint(capsys, code=1) == "port 4000 is taken"


def test_an_interrupt_before_the_server_is_up(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    server.answer = interrupt
    assert cli.main([]) == 0
    assert capsys.readouterr().err == ""


def test_a_site_of_ones_own(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(server)
    assert (config.documentroot, config[CGI_PATH]) == ("htdocs", "cgi-bin")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", ["ewe/sample", "."], ids=["installed", "in a checkout"])
def test_the_sample_site(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
) -> None:
    sample = tmp_path / "lib" / place
    (sample / "htdocs").mkdir(parents=True)
    Path("empty").mkdir()
    monkeypatch.chdir("empty")
    monkeypatch.setattr(cli, "PACKAGE", str(tmp_path / "lib" / "ewe"))
    config = configured(server, "-f")
    assert Path(config.documentroot) == sample / "htdocs"
    assert Path(config[CGI_PATH]) == sample / "cgi-bin"
    assert config.origin("documentroot") == config.origin("cgi_path") == "sample site"
    assert config.concurrency == "fork"
    said = "ewe: no htdocs here; serving the sample site of ewe (`ewe .` serves this directory)\n"
    assert capsys.readouterr().err == said
    Path("programs").mkdir()
    assert configured(server, "--cgi-path", "programs")[CGI_PATH] == "programs"


def test_without_a_sample_site_this_directory_is_served(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("htdocs").rmdir()
    Path("cgi-bin").mkdir()
    monkeypatch.setattr(cli, "PACKAGE", str(tmp_path / "lib" / "ewe"))
    config = configured(server)
    assert config.documentroot == "." and not os.path.isdir(config[CGI_PATH])
    assert "serving this directory itself, without programs" in capsys.readouterr().err


def test_a_directory_that_was_named_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(capsys, "--documentroot", "x", code=1)
    assert message == 'document root "x" (command line) is not a directory'
    Path("ewe.toml").write_text("\ncgi-path = 'x'")
    assert complaint(capsys, code=1) == 'cgi-path "x" (ewe.toml line 2) is not a directory'


def test_a_named_document_root_is_never_replaced_by_the_sample(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("htdocs").rmdir()
    (tmp_path / "lib" / "htdocs").mkdir(parents=True)
    monkeypatch.setattr(cli, "PACKAGE", str(tmp_path / "lib" / "ewe"))
    message = complaint(capsys, "--documentroot", "htdocs", code=1)
    assert message == 'document root "htdocs" (command line) is not a directory'


@pytest.mark.parametrize(
    ("lines", "is_needed"),
    [
        ('prefix = "/"\ngateway = "wsgi:shop:app"', False),
        ('prefix = "/"\ngateway = "http://127.0.0.1:9"', False),
        ('prefix = "/"\nredirect = "https://elsewhere.example$path"', False),
        ('prefix = "/"\nalias = "files"', False),
        ('prefix = "/a"\nstatus = 404\n[[site.location]]\nprefix = "/"\ngateway = "asgi:shop:app"', False),
        ('prefix = "/a"\ngateway = "wsgi:shop:app"', True),  # other paths are files
        ('prefix = "/"\ntry = ["$path"]\ngateway = "wsgi:shop:app"', True),
        ('prefix = "/a"\nindexes = true\n[[site.location]]\nprefix = "/"\ngateway = "wsgi:shop:app"', True),
        ('prefix = "/"\ngateway = "fastcgi:127.0.0.1:9"', True),  # its variables name a file
        ('path = "/"\ngateway = "http://127.0.0.1:9"', True),
    ],
)
def test_a_site_that_only_passes_on_needs_no_document_root(
    server: Server, capsys: pytest.CaptureFixture[str], lines: str, is_needed: bool
) -> None:
    Path("htdocs").rmdir()
    Path("files").mkdir()
    Path("ewe.toml").write_text(f"[[site]]\n[[site.location]]\n{lines}\n")
    if is_needed:
        assert complaint(capsys, code=1) == 'document root "htdocs" (default) is not a directory'
        return
    assert not os.path.exists(configured(server).documentroot)
    Path("ewe.toml").write_text(f'documentroot = "gone"\n[[site]]\n[[site.location]]\n{lines}\n')
    assert '"gone" (ewe.toml line 1) is not a directory' in complaint(capsys, code=1)


def test_an_application_at_the_root_needs_no_document_root(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("htdocs").rmdir()
    config = configured(server, "--proxy", "/=http://127.0.0.1:9")
    assert not os.path.exists(config.documentroot) and capsys.readouterr().err == ""


LINUX_ALONE = [
    ("ewe.cli", ["-x", "0"], "X-Switch (-x)"),
    ("ewe.cli", ["-t", "--database", "shop=sqlite:"], "the database daemon (database)"),
    ("ewe.cli", ["--build-libcgi"], "LibCGI"),
    ("ewe.cli", ["--check-config", "-x"], "X-Switch (-x)"),
    ("ewe.xswitch.cli", ["--listen", "127.0.0.1:0"], "X-Switch"),
    ("ewe.database.cli", ["--listen", "unix:nowhere"], "the database daemon"),
    ("ewe_classroom.grader.cli", ["server.py"], "the grader"),
    ("ewe_classroom.course.cli", ["measure", "pool", "server.py"], "measuring a server"),
    ("ewe_lab.cli", ["compare", "-t"], "measuring"),
]


@pytest.mark.starts_processes
@pytest.mark.parametrize(("module", "arguments", "what"), LINUX_ALONE)
def test_what_needs_linux_says_so(tmp_path: Path, module: str, arguments: list[str], what: str) -> None:
    """One line names the commands that build the container and run the same command in it."""
    command = (
        "import sys; from ewe.config import linux; linux.SYSTEM = 'darwin'\n"
        f"from {module} import main; sys.exit(main(sys.argv[1:]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert said.returncode in (1, 2), said
    (line,) = [each for each in said.stderr.splitlines() if "needs Linux" in each]
    build = f"docker build -t ewe {shlex.quote(str(ROOT))} && docker run --rm"
    assert f": {what} needs Linux: run it in a container, {build}" in line
    assert "Traceback" not in said.stderr


@pytest.mark.starts_processes
def test_the_command_on_another_system(tmp_path: Path) -> None:
    """A Python without all that Linux alone has: the command starts, serves and stops."""
    (tmp_path / "index.html").write_text("welcome")
    command = "from support.other_system import hide; hide(); from ewe.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "-t", "--port", "0", "."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", line := process.stderr.readline())
        assert found, line + process.stderr.read()
        assert web.get(found[0]).text == "welcome"
        process.terminate()
    assert process.returncode == 0


@pytest.mark.starts_processes
def test_a_python_without_epollexclusive() -> None:
    command = (
        "import select; del select.EPOLLEXCLUSIVE; from ewe.streams import listener\n"
        "print(listener.EPOLLEXCLUSIVE)"
    )
    assert subprocess.check_output([sys.executable, "-c", command], text=True, cwd=ROOT) == "0\n"
