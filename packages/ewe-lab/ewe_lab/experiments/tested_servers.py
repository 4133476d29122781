"""The servers under test that experiments and the files of papers may name."""

from ewe_lab.bench.experiment import ServerUnderTest

SERIAL = ServerUnderTest("serial", model="serial", most=1)
FORK = ServerUnderTest("fork", model="fork", most=256)
PREFORK = ServerUnderTest("prefork", model="prefork", options=("--workers", "8"), most=8)
THREAD = ServerUnderTest("thread", model="thread", most=1000)
POOL_2006 = ServerUnderTest(
    "pool-2006", model="pool", options=("--parking", "never", "--poolthreads", "5"), most=5
)
POOL = ServerUnderTest("pool", model="pool")
ASYNCIO = ServerUnderTest("asyncio", model="asyncio")
MODELS = (SERIAL, FORK, PREFORK, THREAD, POOL_2006, POOL, ASYNCIO)

APACHE_PREFORK = ServerUnderTest("apache-prefork", "apache-prefork", most=256)
APACHE_WORKER = ServerUnderTest("apache-worker", "apache-worker", most=400)
APACHE_EVENT = ServerUnderTest("apache-event", "apache-event")
NGINX = ServerUnderTest("nginx", "nginx")
LIGHTTPD = ServerUnderTest("lighttpd", "lighttpd")
H2O = ServerUnderTest("h2o", "h2o")
TOMCAT = ServerUnderTest("tomcat", "tomcat")
YAWS = ServerUnderTest("yaws", "yaws")
MONGREL2 = ServerUnderTest("mongrel2", "mongrel2")
CADDY = ServerUnderTest("caddy", "caddy")
OTHER_SERVERS = (
    APACHE_PREFORK,
    APACHE_WORKER,
    APACHE_EVENT,
    NGINX,
    LIGHTTPD,
    H2O,
    TOMCAT,
    YAWS,
    MONGREL2,
    CADDY,
)

BY_NAME = {each.name: each for each in (*MODELS, *OTHER_SERVERS)}
