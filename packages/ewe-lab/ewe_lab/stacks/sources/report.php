<?php
/* report.h as a PHP page, over a connection that the interpreter keeps from one request to the next (PDO's persistent
 * connections): under X-Switch, whose engines stay, as under php-fpm. SOURCE and ACCOUNT are PDO's, and are replaced
 * with the STATEMENT of the others before the page is served. PDO checks a kept connection, and makes a lost one again.
 */
const SOURCE = '@SOURCE@';
const ACCOUNT = '@ACCOUNT@';
const STATEMENT = '@STATEMENT@';

function clocks()
{
    $used = getrusage();
    $cpu = ($used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec']) * 1e3
        + ($used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec']) / 1e3;
    return [$cpu, hrtime(true) / 1e6];
}

function refuse($status, $text, $reason)
{
    error_log('report: ' . strtr($reason, "\n", ' '));
    http_response_code($status);
    header('Content-Type: text/plain; charset=utf-8');
    echo $text, "\n";
    exit;
}

function connect()
{
    $options = [PDO::ATTR_PERSISTENT => true, PDO::ATTR_TIMEOUT => 5];
    if (strncmp(SOURCE, 'sqlite:', 7) === 0) {
        $options[PDO::SQLITE_ATTR_OPEN_FLAGS] = PDO::SQLITE_OPEN_READONLY;
    }
    try {
        return new PDO(SOURCE, ACCOUNT, '', $options);
    } catch (PDOException $reason) {
        refuse(503, 'The database does not answer. Please try again later.', $reason->getMessage());
    }
}

function table($database)
{
    $page = "<table>\n<thead><tr><th>address</th><th>total</th></tr></thead>\n<tbody>\n";
    foreach ($database->query($_GET['sql'] ?? STATEMENT, PDO::FETCH_NUM) as [$address, $total]) {
        $page .= '<tr><td>' . htmlspecialchars($address) . "</td><td class=\"number\">$total</td></tr>\n";
    }
    return $page . "</tbody>\n</table>\n";
}

$began = clocks();
$database = connect();
$connected = clocks();
try {
    try {
        $page = table($database);
    } catch (PDOException $reason) {
        // The server has ended: PDO notices only by the answer to a statement, and connects again if it is asked to
        if (strpos($reason->getMessage(), 'terminating connection') === false
            && strpos($reason->getMessage(), 'server closed the connection') === false) {
            throw $reason;
        }
        $database = null;
        $page = table(connect());
    }
} catch (PDOException $reason) {
    refuse(500, 'The database could not make this report.', $reason->getMessage());
}
$ended = clocks();
header('Content-Type: text/html; charset=utf-8');
header('Content-Length: ' . strlen($page));
foreach (['', '-wall'] as $clock => $name) {
    header(sprintf('Server-Timing: con%s;dur=%.3F, ret%s;dur=%.3F', $name, $connected[$clock] - $began[$clock],
        $name, $ended[$clock] - $connected[$clock]), false);
}
echo $page;
