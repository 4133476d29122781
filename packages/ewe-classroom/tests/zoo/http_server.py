"""The server of Python's standard library with threads, ended by SIGTERM as the labs ask. PORT ROOT [WORKERS]"""

import functools
import signal
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for the conversations
    request_queue_size = 128

    def handle_error(self, request, client):
        pass


server = Server(("127.0.0.1", int(sys.argv[1])), functools.partial(Quiet, directory=sys.argv[2]))
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
server.server_close()
