"""WordPress from Debian's package, as a copy in a directory of the lab, with the lab's blog in a private MariaDB.

    with wordpress(lab) as blog:
        nginx(Setup(..., root=blog.root))      # asks for /, and for blog.post

    copy       /usr/share/wordpress, links followed, without Debian's wp-config.php
    configure  wp-config.php: the private database, no request to any other machine, no cron jobs of visitors
    install    WordPress's own installer, run by PHP's command line; then the posts and comments

The address of a post is `/?p=NUMBER`, as in the thesis: WordPress's plain permalinks, for which the web server need
not rewrite URLs. The site's address is taken from each request, so one copy works behind any server and port.
Raises LabError.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.bench.processes import LabError, find_tool, last_line, output_text, running
from ewe_lab.load.child import environment
from ewe_lab.stacks import mariadb
from ewe_lab.stacks.blog import POSTS_ON_MAIN_PAGE, TITLE, posts

PACKAGE = Path("/usr/share/wordpress")
THEMES = PACKAGE / "wp-content" / "themes"
DRIVER = "mysqli"
INSTALL_TIMEOUT_S = 120.0  # seconds

CONFIGURATION = """<?php
define('DB_NAME', '{name}');
define('DB_USER', '{user}');
define('DB_PASSWORD', '{password}');
define('DB_HOST', 'localhost:{socket}');
define('DB_CHARSET', 'utf8mb4');
define('DB_COLLATE', '');
{keys}
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('DISABLE_WP_CRON', true);
define('AUTOMATIC_UPDATER_DISABLED', true);
define('WP_HOME', 'http://' . ($_SERVER['HTTP_HOST'] ?? 'localhost'));
define('WP_SITEURL', WP_HOME);
$table_prefix = 'wp_';
if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
"""
# A plug-in that allows a cache to keep a visitor's page. Without it WordPress says nothing, and ewe keeps nothing.
MAY_BE_CACHED = """<?php
add_action('send_headers', function () {
    if (!is_user_logged_in() && $_SERVER['REQUEST_METHOD'] === 'GET') header('Cache-Control: public, max-age=60');
});
"""
KEYS = [
    f"{kind}_{part}" for part in ("KEY", "SALT") for kind in ("AUTH", "SECURE_AUTH", "LOGGED_IN", "NONCE")
]

INSTALLER = """<?php
// Reads {root, title, password, most, posts} from standard input; prints the number of the newest post.
$blog = json_decode(file_get_contents('php://stdin'), true);
define('WP_INSTALLING', true);
require $blog['root'] . '/wp-load.php';
require_once ABSPATH . 'wp-admin/includes/upgrade.php';
wp_install($blog['title'], 'admin', 'admin@example.org', false, '', $blog['password']);
foreach (get_posts(['numberposts' => -1, 'post_type' => ['post', 'page']]) as $sample)
    wp_delete_post($sample->ID, true);
update_option('permalink_structure', '');
update_option('posts_per_page', $blog['most']);
foreach ($blog['posts'] as $post) {
    $number = wp_insert_post(['post_title' => $post['title'], 'post_date' => $post['date'], 'post_author' => 1,
        'post_content' => implode("\\n\\n", $post['paragraphs']), 'post_status' => 'publish'], true);
    if (is_wp_error($number)) { fwrite(STDERR, $number->get_error_message()); exit(1); }
    foreach ($post['comments'] as $comment)
        wp_insert_comment(['comment_post_ID' => $number, 'comment_author' => $comment['author'],
            'comment_date' => $comment['date'], 'comment_content' => $comment['text'],
            'comment_approved' => 1]);
}
echo "post $number\\n";
"""


@dataclass(frozen=True)
class WordPressSite:
    """An installed WordPress. root: its document root. post: the path of a post. database_pids: of its database."""

    root: Path
    post: str
    database_pids: tuple[int, ...]
    password: str = ""  # of the administrator


def missing_packages() -> str:
    """Return the packages that are missing, "" if none is."""
    lacking = [] if (PACKAGE / "wp-load.php").exists() else ["wordpress"]
    if not lacking and not any(THEMES.glob("*/style.css")):
        lacking.append("wordpress-theme-twentytwentythree")  # without a theme all pages are empty
    if package := mariadb.missing_packages():
        lacking.append(package)
    php = find_tool("php")
    if php is None:
        lacking.append("php-cli")
    if php is None or DRIVER not in modules(php):
        lacking.append("php-mysql")
    return " ".join(lacking)


def modules(php: str) -> list[str]:
    """Return the names of the modules that PHP has."""
    done = subprocess.run([php, "-m"], capture_output=True, text=True, timeout=30, env=environment())
    return done.stdout.split()


@contextmanager
def wordpress(lab: Bench) -> Iterator[WordPressSite]:
    """Install WordPress, and start a database for it until the block is left; yield the site. Raises LabError."""
    if packages := missing_packages():
        raise LabError(f"WordPress is left out: apt install {packages}")
    root = Path(tempfile.mkdtemp(prefix="wordpress-", dir=lab.directory))
    shutil.copytree(
        PACKAGE, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("wp-config.php"),
        ignore_dangling_symlinks=True,
    )  # fmt: skip
    root.chmod(0o755)
    with mariadb.mariadb(lab, "blog") as database:
        (root / "wp-config.php").write_text(configuration(database))
        plugins = root / "wp-content" / "mu-plugins"
        plugins.mkdir(exist_ok=True)
        (plugins / "cache.php").write_text(MAY_BE_CACHED)
        password = secrets.token_hex(12)
        newest_post = install(root, password)
        yield WordPressSite(root, post=f"/?p={newest_post}", database_pids=(database.pid,), password=password)


def configuration(database: mariadb.MariaDBServer) -> str:
    """Return the text of wp-config.php."""
    keys = "\n".join(f"define('{name}', '{secrets.token_hex(32)}');" for name in KEYS)
    return CONFIGURATION.format(
        name=database.name, user=database.user, password=database.password, keys=keys,
        socket=str(database.socket).replace("\\", "\\\\").replace("'", "\\'"),
    )  # fmt: skip


def install(root: Path, password: str) -> int:
    """Run WordPress's installer, and let it write the blog's posts; return the number of the newest post.

    root: the copy of WordPress. password: the administrator's. Raises LabError.
    """
    # INSTALLER reads these values. The password is not on a command line, which other accounts could read
    settings = {
        "root": str(root), "title": TITLE, "password": password, "most": POSTS_ON_MAIN_PAGE,
        "posts": [asdict(post) for post in posts()],
    }  # fmt: skip
    installer = root.with_name(f"{root.name}.php")
    installer.write_text(INSTALLER)
    # WordPress sends an email to its new administrator. No program must send it, so `true` takes its place
    command = ["php", "-d", "sendmail_path=/bin/true", "-d", "display_errors=stderr", str(installer)]
    # The last line of the output is `post NUMBER`, or the error if the installer fails
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(json.dumps(settings).encode())
        stdin.seek(0)
        with running(command, output, cwd=root, env=environment(), stdin=stdin) as started:
            try:
                status = started.wait(INSTALL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise LabError(f"WordPress's installer did not end within {INSTALL_TIMEOUT_S:g} s") from None
            last_output = last_line(output_text(output))
            if status or not last_output.startswith("post "):
                raise LabError(f"WordPress could not be installed: {last_output}")
            return int(last_output.removeprefix("post "))
