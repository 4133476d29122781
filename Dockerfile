# ewe with its classroom: all that a laptop needs to write servers in Python, C or Go, to grade them, and to run ewe.
#
#   docker build -t ewe .
#   docker run --rm -it --init -v "$PWD:/work" ewe                                    a shell in your directory
#   docker run --rm -it --init -v "$PWD:/work" ewe ewe-grade --lab pool server.py
#   docker run --rm -it --init -v "$PWD:/work" -p 127.0.0.1:4000:4000 ewe ewe --host 0.0.0.0 4000
#
# packages/ewe-classroom/docs/teaching.md says more. The directory is mounted, and files in it stay yours: on Linux, add
# --user "$(id -u):$(id -g)".
FROM python:3.12-slim-bookworm

# gcc, make, golang-go: the labs in C and Go. curl, nc: conversations by hand. procps, strace: to look at processes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        curl gcc git golang-go libc6-dev make netcat-openbsd procps strace \
    && rm -rf /var/lib/apt/lists/*

COPY . /opt/ewe
RUN PIP_CONSTRAINT=/opt/ewe/constraints.txt pip install --no-cache-dir \
        "/opt/ewe[uvloop]" /opt/ewe/packages/ewe-explore /opt/ewe/packages/ewe-classroom \
        /opt/ewe/packages/ewe-lab /opt/ewe/packages/ewe-watch pytest

# The grader and the servers of students need no rights of root.
RUN useradd --create-home --uid 1000 --shell /bin/bash student
USER student
# Go keeps what it has compiled there, also where the account has no home directory.
ENV GOCACHE=/tmp/go-build
WORKDIR /work
CMD ["bash"]
