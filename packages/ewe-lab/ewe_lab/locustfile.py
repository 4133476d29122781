"""A load for locust, for you to read, run and change. It works with any web server; ewe listens at port 4000.

    pip install locust
    locust -f locustfile.py --host http://127.0.0.1:4000         # then open http://localhost:8089
    locust -f locustfile.py --host http://127.0.0.1:4000 --headless --users 50 --run-time 30s

Two kinds of users send a request, wait for the answer, think, and send the next request: a closed loop, like
people. While the server stalls, the users send fewer requests, so few requests measure the stall. `ewe-lab compare
--rate` makes an open loop, which shows the stall. locust itself needs about 0.1 ms for a request. Beyond 2000
requests a second, or when locust warns of its CPU, you measure locust. Then spread locust over processes or
machines:

    locust -f locustfile.py --master --expect-workers 2 ...       # on one machine
    locust -f - --worker --master-host ADDRESS                    # on others, which need no file
"""

import os

from locust import FastHttpUser, LoadTestShape, between, constant, tag, task


class Reader(FastHttpUser):
    """Reads pages. Five of six users are readers."""

    weight = 5
    wait_time = constant(0.1)  # seconds of thinking between an answer and the next request

    @tag("page")
    @task
    def read_a_page(self):
        self.client.get("/")


class Searcher(FastHttpUser):
    """Looks for a page that does not exist, and expects a 404."""

    weight = 1
    wait_time = between(0.5, 2)

    @tag("missing")
    @task
    def look_for_a_page(self):
        with self.client.get("/no-such-page", name="/no-such-page (404)", catch_response=True) as answer:
            if answer.status_code == 404:
                answer.success()  # expected; any other status that is not 2xx or 3xx is a failure


STAIRS = [int(number) for number in os.environ.get("STAIRS", "").split(",") if number]
STEP = float(os.environ.get("STEP", "10"))


class Stairs(LoadTestShape):
    """More and more users: STAIRS=10,50,100 STEP=10 locust -f locustfile.py ... (10 s on each step)."""

    abstract = not STAIRS  # without STAIRS, the web page or --users sets the number of users

    def tick(self):
        step = int(self.get_run_time() / STEP)
        if step < len(STAIRS):
            return STAIRS[step], STAIRS[step]  # the number of users, and how many may start in a second
        return None  # the end
