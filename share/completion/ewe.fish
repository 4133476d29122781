# Made by share/make.py of ewe.

function _shtab_ewe_scan
  set -g _shtab_ewe_cmdpath ''
  set -g _shtab_ewe_npos 0
  set -l tokens (commandline -opc)
  set -e tokens[1]
  set -l expect_value 0
  for t in $tokens
    if test $expect_value -eq 1
      set expect_value 0
      continue
    end
    switch "$t"
      case '--*=*'
        continue
      case '-*'
        if contains -- $t $_shtab_ewe_opts_with_value
          set expect_value 1
        end
        continue
      case '*'
        if test $_shtab_ewe_npos -eq 0
          set -l candidate $t
          if test -n "$_shtab_ewe_cmdpath"
            set candidate "$_shtab_ewe_cmdpath $t"
          end
          if contains -- $candidate $_shtab_ewe_commands
            set -g _shtab_ewe_cmdpath $candidate
            continue
          end
        end
        set -g _shtab_ewe_npos (math $_shtab_ewe_npos + 1)
    end
  end
end

# Condition helper: true if the current (sub)command path equals the given one.
function _shtab_ewe_using
  _shtab_ewe_scan
  test "$_shtab_ewe_cmdpath" = "$argv"
end

set -g _shtab_ewe_commands
set -g _shtab_ewe_opts_with_value --access-log --asgi --backlog --bind --body-timeout --browser --browser-edit --browser-hidden --browser-query --cache --call-threads --certfile --cgi-path --compress --compress-codings --compress-min-size --compress-types --concurrency --config --connections --connections-per-client --content-cache --database --dbd --dbd-key --defaultindex --documentroot --env --explain --fastcgi --fastcgi-affinity --fastcgi-authorizer --fastcgi-connections --fastcgi-patience --fastcgi-queue-timeout --fastcgi-retry --fastcgi-start --grace --group --head-timeout --help --host --idle --keyfile --languages --libcgi-isolation --libcgi-max-output --libcgi-path --libcgi-timeout --log-format --log-level --logfile --loglevel --loop --max-body --max-field --max-fields --max-head --max-target --min-rate --min-uid --model --mount --overload --parking --pid --pid-file --poolthreads --port --program-timeout --proxy --proxy-host --proxy-idle --proxy-timeout --proxy-upgrade --queue --requests --retire --scgi --schedule --schedule-ageing --spool --status --status-allow --symlinks --threads --tls --tls-cert --tls-key --tls-timeout --trace --trusted-fields --trusted-proxies --user --userdir --uwsgi --workers --write-timeout --wsgi --xswitch --xswitch-config -h

complete -c ewe -e
complete -c ewe -f

complete -c ewe -n _shtab_ewe_using -l config -xka "(__fish_complete_path (commandline -ct))" -d 'the settings file [ewe.toml, or [tool.ewe] of pyproject.toml; EWE_CONFIG]'
complete -c ewe -n _shtab_ewe_using -l explain -x -d 'print which rule answers a URL, and why, and end: /path, http://host/path or '"'"'POST /path'"'"''
complete -c ewe -n _shtab_ewe_using -l check-config -d 'check the settings and what they name, and end'
complete -c ewe -n _shtab_ewe_using -l print-config -d 'print every setting, with where it came from, and end'
complete -c ewe -n _shtab_ewe_using -l build-libcgi -d 'build what LibCGI libraries need (with a C compiler), and end'
complete -c ewe -n _shtab_ewe_using -l version -d 'print the version and end'
complete -c ewe -n _shtab_ewe_using -s h -l help -xka "all listening model operations files programs databases http proxies compression tls logs" -d 'print a screen of help and end; WHAT: all, or what the options concern, such as tls'
complete -c ewe -n _shtab_ewe_using -l host -x -d 'the address to listen on; 0.0.0.0 or :: for every network [127.0.0.1; EWE_HOST]'
complete -c ewe -n _shtab_ewe_using -l port -x -d 'the TCP port; 0: a free port, which the banner shows [4000; EWE_PORT]'
complete -c ewe -n _shtab_ewe_using -l bind -x -d 'listen here instead of at host and port: HOST:PORT, [::1]:PORT, unix:PATH or fd://N; may be repeated [none; EWE_BIND]'
complete -c ewe -n _shtab_ewe_using -l backlog -x -d 'how many new connections may wait in the kernel to be accepted [1024; EWE_BACKLOG]'
complete -c ewe -n _shtab_ewe_using -l open -l no-open -d 'show the site in this computer'"'"'s browser once ewe listens [false; EWE_OPEN]'
complete -c ewe -n _shtab_ewe_using -s n -d '--model serial'
complete -c ewe -n _shtab_ewe_using -s f -d '--model fork'
complete -c ewe -n _shtab_ewe_using -s t -d '--model thread'
complete -c ewe -n _shtab_ewe_using -s p -d '--model pool'
complete -c ewe -n _shtab_ewe_using -s a -d '--model asyncio'
complete -c ewe -n _shtab_ewe_using -s x -d '--model xswitch'
complete -c ewe -n _shtab_ewe_using -l concurrency -l model -xka "serial fork prefork thread pool asyncio xswitch" -d 'the concurrency model by name, or module:Class to try your own [pool; EWE_CONCURRENCY]'
complete -c ewe -n _shtab_ewe_using -l workers -xka "N N..M auto" -d 'how many processes serve; auto: one for each processor that ewe may use; a range, for prefork: more of them start while all are busy; default: 1, prefork 8..64 (also with auto) [default; EWE_WORKERS]'
complete -c ewe -n _shtab_ewe_using -l poolthreads -l threads -xka "N N..M" -d 'how many threads a pool has; a range: more of them start while all are busy and a client waits (with parking = never, only if you give a range) [5..50; EWE_POOLTHREADS]'
complete -c ewe -n _shtab_ewe_using -l queue -x -d 'how many connections may wait for a thread of the pool [1024; EWE_QUEUE]'
complete -c ewe -n _shtab_ewe_using -l schedule -xka "fifo sff srpt" -d 'which waiting request a thread of the pool takes next: first come, first served (fifo), the smallest file (sff), or the smallest rest of a file (srpt) [fifo; EWE_SCHEDULE]'
complete -c ewe -n _shtab_ewe_using -l schedule-ageing -x -d 'with sff and srpt, a request that so many later ones have overtaken is next, so that no large file starves [8; EWE_SCHEDULE_AGEING]'
complete -c ewe -n _shtab_ewe_using -l parking -xka "never idle always" -d 'when a thread of the pool leaves a client that keeps it waiting: never (as in 2006), between requests (idle), or always [always; EWE_PARKING]'
complete -c ewe -n _shtab_ewe_using -l connections -x -d 'the largest number of open connections of a process (children of fork, threads of thread); auto: the model'"'"'s own limit [auto; EWE_CONNECTIONS]'
complete -c ewe -n _shtab_ewe_using -l connections-per-client -x -d 'the largest number of open connections of one client address in a process; above it 503; 0: no limit [0; EWE_CONNECTIONS_PER_CLIENT]'
complete -c ewe -n _shtab_ewe_using -l overload -xka "wait refuse drop-oldest drop-largest" -d 'at the connection limit, let new connections wait in the backlog, or refuse them with 503 and Retry-After; if the queue of the pool is full, refuse drops the newest request, drop-oldest the oldest, and drop-largest that for the largest file [wait; EWE_OVERLOAD]'
complete -c ewe -n _shtab_ewe_using -l retire -x -d 'replace a worker process after about this many requests; 0: never [0; EWE_RETIRE]'
complete -c ewe -n _shtab_ewe_using -l loop -xka "auto uvloop asyncio" -d 'the event loop; auto: uvloop if it is installed, else asyncio [auto; EWE_LOOP]'
complete -c ewe -n _shtab_ewe_using -l call-threads -x -d 'how many calls that may block, such as those of WSGI applications, an event loop makes at once, each in a thread; other models make them in place [16; EWE_CALL_THREADS]'
complete -c ewe -n _shtab_ewe_using -l reload -l no-reload -d 'start new workers when a source file of an application, a feature or a model of yours changes, or the settings file; for your own machine [false; EWE_RELOAD]'
complete -c ewe -n _shtab_ewe_using -l grace -x -d 'how long requests in progress may go on after a stop [10s; EWE_GRACE]'
complete -c ewe -n _shtab_ewe_using -l pid-file -l pid -xka "(__fish_complete_path (commandline -ct))" -d 'a file that holds the process number while the server runs [none; EWE_PID_FILE]'
complete -c ewe -n _shtab_ewe_using -l user -x -d 'the user to become once sockets and logs are open; only for root [none; EWE_USER]'
complete -c ewe -n _shtab_ewe_using -l group -x -d 'the group to become; none: the groups of the user [none; EWE_GROUP]'
complete -c ewe -n _shtab_ewe_using -l status -xka "(__fish_complete_path (commandline -ct))" -d 'the path of a page with what the server does and has done, such as /ewe-status; PATH?json is the same as JSON, and PATH/metrics is for Prometheus [none; EWE_STATUS]'
complete -c ewe -n _shtab_ewe_using -l status-allow -x -d 'who may see it: an address, a network such as 10.0.0.0/8, or unix for Unix sockets; may be repeated [127.0.0.0/8, ::1; EWE_STATUS_ALLOW]'
complete -c ewe -n _shtab_ewe_using -l trace -xka "(__fish_complete_path (commandline -ct))" -d 'a file, or a named pipe, that gets a line for each event of a connection: which worker runs it, what it waits for; `ewe-watch` draws it [none; EWE_TRACE]'
complete -c ewe -n _shtab_ewe_using -l documentroot -xka "(__fish_complete_path (commandline -ct))" -d 'the directory whose files the URLs below / name [htdocs; EWE_DOCUMENTROOT]'
complete -c ewe -n _shtab_ewe_using -l defaultindex -x -d 'the file that answers for a directory: the first of these that exists; may be repeated [index.html; EWE_DEFAULTINDEX]'
complete -c ewe -n _shtab_ewe_using -l userdir -x -d 'the directory in each user'"'"'s home whose files the URLs below /~NAME/ name, such as public_html; empty: none [none; EWE_USERDIR]'
complete -c ewe -n _shtab_ewe_using -l userdir-settings -l no-userdir-settings -d 'read the file .ewe.toml in each user'"'"'s directory: index, indexes, error-pages, headers, auth [false; EWE_USERDIR_SETTINGS]'
complete -c ewe -n _shtab_ewe_using -l min-uid -x -d 'the smallest uid whose user has such a directory; smaller ones are system accounts [1000; EWE_MIN_UID]'
complete -c ewe -n _shtab_ewe_using -l indexes -l no-indexes -d 'list a directory without such a file [true; EWE_INDEXES]'
complete -c ewe -n _shtab_ewe_using -l symlinks -xka "inside follow" -d 'which symbolic links to follow: those that stay inside the document root, or all [inside; EWE_SYMLINKS]'
complete -c ewe -n _shtab_ewe_using -l languages -x -d 'the languages that files may have, the default one first: page.en.html or page.html.de answers for page.html, as Accept-Language says; may be repeated [none; EWE_LANGUAGES]'
complete -c ewe -n _shtab_ewe_using -l markdown -l no-markdown -d 'show Markdown files (.md) as pages and books; needs the package markdown [false; EWE_MARKDOWN]'
complete -c ewe -n _shtab_ewe_using -l cache -x -d 'memory for small files; ewe checks each for changes at most once a second; 0: off [16m; EWE_CACHE]'
complete -c ewe -n _shtab_ewe_using -l cgi-path -xka "(__fish_complete_path (commandline -ct))" -d 'the directory whose programs the URLs below /cgi-bin/ name [cgi-bin; EWE_CGI_PATH]'
complete -c ewe -n _shtab_ewe_using -l program-timeout -x -d 'how long a program may be silent before ewe kills it (504) [1m; EWE_PROGRAM_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l libcgi-path -xka "(__fish_complete_path (commandline -ct))" -d 'the directory whose libraries (.so) the URLs below /libcgi-bin/ name; ewe calls them in its own process, once `ewe --build-libcgi` was run [libcgi-bin; EWE_LIBCGI_PATH]'
complete -c ewe -n _shtab_ewe_using -l libcgi-isolation -xka "in-place process" -d 'where LibCGI libraries are called: in ewe'"'"'s own process (in-place), or in an engine of X-Switch (process), which needs --xswitch or the xswitch model [in-place; EWE_LIBCGI_ISOLATION]'
complete -c ewe -n _shtab_ewe_using -l libcgi-status -l no-libcgi-status -d 'show the libraries that are loaded, with their calls and faults, at /libcgi-status to loopback addresses; behind a proxy on this machine, that is everybody [false; EWE_LIBCGI_STATUS]'
complete -c ewe -n _shtab_ewe_using -l libcgi-max-output -x -d 'how many bytes one call of a LibCGI library may write before ewe ends it (500); long output is kept in a temporary file [1g; EWE_LIBCGI_MAX_OUTPUT]'
complete -c ewe -n _shtab_ewe_using -l libcgi-timeout -x -d 'how long a call of a LibCGI library may take before ewe ends it (500) [10s; EWE_LIBCGI_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l fastcgi -x -d 'a FastCGI responder and what it answers for: files with an extension (.php=unix:/run/php.sock) or all below a path (/app=127.0.0.1:9000); may be repeated; the addresses of one extension or path are used in turn [none; EWE_FASTCGI]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-start -x -d 'a FastCGI program that ewe starts and keeps, what it answers for, and how many processes it has: .php=4:php-cgi; may be repeated [none; EWE_FASTCGI_START]'
complete -c ewe -n _shtab_ewe_using -l scgi -x -d 'the same for a program that speaks SCGI; may be repeated [none; EWE_SCGI]'
complete -c ewe -n _shtab_ewe_using -l uwsgi -x -d 'the same for a program that speaks uwsgi, such as uWSGI; may be repeated [none; EWE_UWSGI]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-authorizer -x -d 'a FastCGI authorizer and the path below which it decides who gets an answer: /members=unix:/run/auth.sock; may be repeated [none; EWE_FASTCGI_AUTHORIZER]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-keep -l no-fastcgi-keep -d 'keep connections to FastCGI responders open for the next request: faster, but each open connection holds a child of php-fpm [false; EWE_FASTCGI_KEEP]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-retry -x -d 'how long an address of a responder with several is left out once it cannot be reached [10s; EWE_FASTCGI_RETRY]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-affinity -x -d 'the name of a cookie by which a client goes again to the same address of a responder with several; empty: none [none; EWE_FASTCGI_AFFINITY]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-connections -x -d 'the largest number of connections that a process opens to one address of a responder; further requests wait in a queue; 0: no limit [0; EWE_FASTCGI_CONNECTIONS]'
complete -c ewe -n _shtab_ewe_using -l fastcgi-queue-timeout -l fastcgi-patience -x -d 'how long a request waits in that queue (503) [10s; EWE_FASTCGI_QUEUE_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l xswitch -x -d 'the address of an X-Switch that runs programs in engines: unix:PATH or HOST:PORT; empty: the xswitch model starts one, other models have none [none; EWE_XSWITCH]'
complete -c ewe -n _shtab_ewe_using -l xswitch-config -xka "(__fish_complete_path (commandline -ct))" -d 'X-Switch'"'"'s settings file (TOML); ewe reads in it which directories hold scripts [none; EWE_XSWITCH_CONFIG]'
complete -c ewe -n _shtab_ewe_using -l xswitch-status -l no-xswitch-status -d 'show X-Switch'"'"'s engines, with all users'"'"' scripts, at /xswitch-status to loopback addresses; behind a proxy on this machine, that is everybody [false; EWE_XSWITCH_STATUS]'
complete -c ewe -n _shtab_ewe_using -l mount -x -d 'a feature of another package or of your own, and the path below which it is asked first: /hello=module:Class, or /hello=NAME as a package registers it; may be repeated [none; EWE_MOUNT]'
complete -c ewe -n _shtab_ewe_using -l wsgi -x -d 'a WSGI application and the path below which it answers: /wiki=module:app, or /=module:create() for what a function returns; may be repeated [none; EWE_WSGI]'
complete -c ewe -n _shtab_ewe_using -l asgi -x -d 'an ASGI application (Starlette, FastAPI, ...) and the path below which it answers: /blog=module:app; may be repeated [none; EWE_ASGI]'
complete -c ewe -n _shtab_ewe_using -l env -x -d 'a variable that programs get besides those of the protocol: GIT_PROJECT_ROOT=/srv/git; in a file a table; may be repeated [none; EWE_ENV]'
complete -c ewe -n _shtab_ewe_using -l pass-authorization -l no-pass-authorization -d 'pass the field Authorization to programs, as HTTP_AUTHORIZATION, so that they can check passwords themselves; they then see the password of each visitor [false; EWE_PASS_AUTHORIZATION]'
complete -c ewe -n _shtab_ewe_using -l development -l no-development -d 'show the traceback of an application'"'"'s fault to its visitors; for your own machine only [false; EWE_DEVELOPMENT]'
complete -c ewe -n _shtab_ewe_using -l content-cache -x -d 'memory for responses of programs, of each process, as far as their Cache-Control allows it; 0: off [0; EWE_CONTENT_CACHE]'
complete -c ewe -n _shtab_ewe_using -l spool -x -d 'a request body up to this size stays in memory; a larger one goes to an unnamed temporary file [1m; EWE_SPOOL]'
complete -c ewe -n _shtab_ewe_using -l database -x -d 'a database that pages may read: log=access.db, or shop=postgresql:dbname=shop; ewe starts a database daemon for it, unless `dbd` names one; may be repeated [none; EWE_DATABASE]'
complete -c ewe -n _shtab_ewe_using -l dbd -x -d 'the address of a database daemon (ewe-dbd) that runs already: unix:PATH or HOST:PORT; empty: ewe starts one if there are databases [none; EWE_DBD]'
complete -c ewe -n _shtab_ewe_using -l browser -xka "(__fish_complete_path (commandline -ct))" -d 'the path below which visitors may browse the databases: tables, filters, SQL that only reads; empty: nowhere [/-/databases; EWE_BROWSER]'
complete -c ewe -n _shtab_ewe_using -l browser-hidden -x -d 'a database that nobody may browse, such as one for pages; may be repeated [none; EWE_BROWSER_HIDDEN]'
complete -c ewe -n _shtab_ewe_using -l browser-sql -l no-browser-sql -d 'whether visitors may write SQL there, which only reads [true; EWE_BROWSER_SQL]'
complete -c ewe -n _shtab_ewe_using -l browser-query -x -d 'a saved query of the browser: log/slowest=SELECT ...; a :name in it becomes a field; may be repeated [none; EWE_BROWSER_QUERY]'
complete -c ewe -n _shtab_ewe_using -l browser-edit -x -d 'a table whose rows visitors may insert, edit and delete: shop.goods; only with a daemon (dbd) whose database has write = true; may be repeated [none; EWE_BROWSER_EDIT]'
complete -c ewe -n _shtab_ewe_using -l dbd-key -x -d 'the key of the databases, for a daemon on TCP; empty: none [none; EWE_DBD_KEY]'
complete -c ewe -n _shtab_ewe_using -l persistent -l no-persistent -d 'keep a connection open for the next request [true; EWE_PERSISTENT]'
complete -c ewe -n _shtab_ewe_using -l idle -x -d 'how long a connection may stay idle between requests; auto: 75s if it holds only a socket, 5s if it holds a worker [auto; EWE_IDLE]'
complete -c ewe -n _shtab_ewe_using -l requests -x -d 'the largest number of requests on a connection; 0: no limit [10000; EWE_REQUESTS]'
complete -c ewe -n _shtab_ewe_using -l head-timeout -x -d 'the longest wait for the whole head of a request (408) [10s; EWE_HEAD_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l body-timeout -x -d 'the longest wait for the next part of a body (408) [30s; EWE_BODY_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l write-timeout -x -d 'the longest wait for a client that does not read [30s; EWE_WRITE_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l min-rate -x -d 'the lowest average rate, in bytes a second, of a body that a client sends (408) or a response that it reads (close), once the timeout has passed; 0: no limit [500; EWE_MIN_RATE]'
complete -c ewe -n _shtab_ewe_using -l max-target -x -d 'the longest request target (414) [8k; EWE_MAX_TARGET]'
complete -c ewe -n _shtab_ewe_using -l max-head -x -d 'the largest head of a request (431) [32k; EWE_MAX_HEAD]'
complete -c ewe -n _shtab_ewe_using -l max-field -x -d 'the longest header field (431) [16k; EWE_MAX_FIELD]'
complete -c ewe -n _shtab_ewe_using -l max-fields -x -d 'the largest number of header fields (431) [100; EWE_MAX_FIELDS]'
complete -c ewe -n _shtab_ewe_using -l max-body -x -d 'the largest body of a request (413) [2g; EWE_MAX_BODY]'
complete -c ewe -n _shtab_ewe_using -l proxy -x -d 'another HTTP server and the path below which it answers: /app=http://127.0.0.1:3000 or /app=unix:/run/app.sock; may be repeated; the addresses of one path are used in turn [none; EWE_PROXY]'
complete -c ewe -n _shtab_ewe_using -l proxy-keep -l no-proxy-keep -d 'keep connections to these servers open for the next request [true; EWE_PROXY_KEEP]'
complete -c ewe -n _shtab_ewe_using -l proxy-timeout -x -d 'how long such a server may be silent (504) [1m; EWE_PROXY_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l proxy-host -xka "client server" -d 'the Host that such a server sees: the client'"'"'s, or its own address [client; EWE_PROXY_HOST]'
complete -c ewe -n _shtab_ewe_using -l proxy-upgrade -x -d 'a protocol to which a client and such a server may switch; may be repeated; empty: none [websocket; EWE_PROXY_UPGRADE]'
complete -c ewe -n _shtab_ewe_using -l proxy-idle -x -d 'how long both may be silent after that [5m; EWE_PROXY_IDLE]'
complete -c ewe -n _shtab_ewe_using -l trusted-proxies -x -d 'a proxy in front of ewe that may name its client: an address, a network such as 10.0.0.0/8, or unix for Unix sockets; may be repeated [none; EWE_TRUSTED_PROXIES]'
complete -c ewe -n _shtab_ewe_using -l trusted-fields -xka "x-forwarded forwarded" -d 'the fields in which these proxies name it: X-Forwarded-For, -Proto, -Host and -Port, or Forwarded (RFC 7239) [x-forwarded; EWE_TRUSTED_FIELDS]'
complete -c ewe -n _shtab_ewe_using -l proxy-protocol -l no-proxy-protocol -d 'every connection begins with a header of the PROXY protocol, from one of these proxies [false; EWE_PROXY_PROTOCOL]'
complete -c ewe -n _shtab_ewe_using -l compress -xka "off files public all" -d 'what ewe compresses while it sends it: nothing, files, also responses of programs to requests without Cookie and Authorization (public), or all; a file.gz, .br or .zst beside a file is sent in any case [off; EWE_COMPRESS]'
complete -c ewe -n _shtab_ewe_using -l compress-types -x -d 'the media types that are compressed; may be repeated [text/*, application/json, application/*+json, appl...; EWE_COMPRESS_TYPES]'
complete -c ewe -n _shtab_ewe_using -l compress-min-size -x -d 'the smallest body that is compressed, where its size is known [1k; EWE_COMPRESS_MIN_SIZE]'
complete -c ewe -n _shtab_ewe_using -l compress-codings -x -d 'the codings, the preferred one first; empty: zstd, br and gzip, as far as their packages are installed [none; EWE_COMPRESS_CODINGS]'
complete -c ewe -n _shtab_ewe_using -l tls -xka "off self" -d 'self: HTTPS with a certificate for localhost, made at the start [off; EWE_TLS]'
complete -c ewe -n _shtab_ewe_using -l tls-cert -l certfile -xka "(__fish_complete_path (commandline -ct))" -d 'HTTPS with this certificate chain (PEM) [none; EWE_TLS_CERT]'
complete -c ewe -n _shtab_ewe_using -l tls-key -l keyfile -xka "(__fish_complete_path (commandline -ct))" -d 'the private key of the certificate (PEM); none: it is in the same file [none; EWE_TLS_KEY]'
complete -c ewe -n _shtab_ewe_using -l tls-timeout -x -d 'how long a TLS handshake may take [10s; EWE_TLS_TIMEOUT]'
complete -c ewe -n _shtab_ewe_using -l logfile -xka "(__fish_complete_path (commandline -ct))" -d 'the error log; -: standard error; syslog: the system'"'"'s log daemon [-; EWE_LOGFILE]'
complete -c ewe -n _shtab_ewe_using -l loglevel -l log-level -xka "error warning info debug" -d 'the least important messages that the error log holds [info; EWE_LOGLEVEL]'
complete -c ewe -n _shtab_ewe_using -l access-log -xka "(__fish_complete_path (commandline -ct))" -d 'the access log; -: standard output; off: none; syslog: the system'"'"'s log daemon [-; EWE_ACCESS_LOG]'
complete -c ewe -n _shtab_ewe_using -l log-format -x -d 'the format of a line of the access log: short, combined, common, json, or Apache'"'"'s letters; auto: short on a terminal, else combined [auto; EWE_LOG_FORMAT]'
complete -c ewe -n '_shtab_ewe_using; and test $_shtab_ewe_npos -eq 0' -ka "(__fish_complete_directories)" -d 'a port, the same as --port; a directory whose files to serve, and no programs; or both'
complete -c ewe -n '_shtab_ewe_using; and test $_shtab_ewe_npos -eq 1' -ka "(__fish_complete_directories)" -d 'the directory, after a port'
