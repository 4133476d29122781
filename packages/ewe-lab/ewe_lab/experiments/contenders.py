"""The servers that the experiments name, and that a paper's file may name."""

from ewe_lab.bench.experiment import Contender

SERIAL = Contender("serial", model="serial", most=1)
FORK = Contender("fork", model="fork", most=256)
PREFORK = Contender("prefork", model="prefork", options=("--workers", "8"), most=8)
THREAD = Contender("thread", model="thread", most=1000)
POOL_2006 = Contender("pool-2006", model="pool", options=("--parking", "never", "--poolthreads", "5"), most=5)
POOL = Contender("pool", model="pool")
ASYNCIO = Contender("asyncio", model="asyncio")
MODELS = (SERIAL, FORK, PREFORK, THREAD, POOL_2006, POOL, ASYNCIO)

APACHE_PREFORK = Contender("apache-prefork", "apache-prefork", most=256)
APACHE_WORKER = Contender("apache-worker", "apache-worker", most=400)
APACHE_EVENT = Contender("apache-event", "apache-event")
NGINX = Contender("nginx", "nginx")
LIGHTTPD = Contender("lighttpd", "lighttpd")
H2O = Contender("h2o", "h2o")
TOMCAT = Contender("tomcat", "tomcat")
YAWS = Contender("yaws", "yaws")
CADDY = Contender("caddy", "caddy")
PEERS = (APACHE_PREFORK, APACHE_WORKER, APACHE_EVENT, NGINX, LIGHTTPD, H2O, TOMCAT, YAWS, CADDY)

BY_NAME = {each.name: each for each in (*MODELS, *PEERS)}
