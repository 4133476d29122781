"""A load for locust, to be read, run and changed. Any web server will do; ewe listens at port 4000.

    pip install locust
    locust -f locustfile.py --host http://127.0.0.1:4000         # then open http://localhost:8089
    locust -f locustfile.py --host http://127.0.0.1:4000 --headless --users 50 --run-time 30s

Users of two kinds come, ask, wait for the answer, think, and ask again: a closed loop, as people are. While
the server is slow they ask less, so a stall hides behind the few requests that met it; `ewe-lab compare --rate`
shows the other side. And locust needs about 0.1 ms of its own for a request: beyond 2000 requests a second, or
when it says that its CPU is busy, you measure locust. Then spread it over processes or machines:

    locust -f locustfile.py --master --expect-workers 2 ...       # on one machine
    locust -f - --worker --master-host ADDRESS                    # on others, which need no file
"""

import os

from locust import FastHttpUser, LoadTestShape, between, constant, tag, task


class Reader(FastHttpUser):
    """Reads pages: five in six users are like that."""

    weight = 5
    wait_time = constant(0.1)  # seconds of thinking between an answer and the next request

    @tag("page")
    @task
    def read_a_page(self):
        self.client.get("/")


class Searcher(FastHttpUser):
    """Asks for what is not always there, and does not mind."""

    weight = 1
    wait_time = between(0.5, 2)

    @tag("missing")
    @task
    def look_for_a_page(self):
        with self.client.get("/no-such-page", name="/no-such-page (404)", catch_response=True) as answer:
            if answer.status_code == 404:
                answer.success()  # as expected; anything else that is no 2xx or 3xx counts as a failure


STAIRS = [int(number) for number in os.environ.get("STAIRS", "").split(",") if number]
STEP = float(os.environ.get("STEP", "10"))


class Stairs(LoadTestShape):
    """More and more users: STAIRS=10,50,100 STEP=10 locust -f locustfile.py ... (10 s on each step)."""

    abstract = not STAIRS  # without STAIRS, the web page or --users says how many there are

    def tick(self):
        step = int(self.get_run_time() / STEP)
        if step < len(STAIRS):
            return STAIRS[step], STAIRS[step]  # how many users, and how many of them may come in a second
        return None  # the end
