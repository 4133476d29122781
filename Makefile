# Everything a clone needs, with GNU make and Python 3.11 or newer: `make serve`, `make test`.

PYTHON ?= python3
VENV ?= .venv
PYTHONS ?= python3.11 python3.12 python3.13
PYTEST_ARGS ?= -n 7 --dist worksteal
# A complete run (.ci/run) repeats the few tests that failed, alone.
PYTEST = $(VENV)/bin/$(if $(EWE_TEST_COMPLETE),python tests/support/repeat_failed.py,pytest)
WHICH ?= pytest
ARGS ?=
PART ?=

# Which tests `make test` and `make quick` run: those of one house, or all.
TESTS_server = tests
TESTS_explore = packages/ewe-explore/tests
TESTS_classroom = packages/ewe-classroom/tests
TESTS_lab = packages/ewe-lab/tests
TESTS_watch = packages/ewe-watch/tests
ifneq ($(PART),)
ifndef TESTS_$(PART)
$(error PART=$(PART) is no part of ewe: it is server, explore, classroom, lab or watch)
endif
endif
TESTS = $(TESTS_$(PART))

# Tests of what differs between versions of Python, beside the quick ones: the event loop, threads at the end of a
# process and forks beside threads (models, streams), ssl (streams), subprocess and os.posix_spawn (gateway), the
# messages of argparse and of tomllib, Unix sockets that asyncio removes (operations), and what X-Switch's Python
# engine knows of the interpreter: its modules, its garbage collector, its state at a fork.
VERSIONS_DIFFER = tests/models tests/streams tests/operations tests/gateway/test_cgi.py \
	tests/xswitch/test_python_engine.py tests/xswitch/test_python_isolation.py tests/xswitch/test_python_spare.py \
	tests/xswitch/test_preloaded.py

# The rooms that a student's Mac needs, checked as on macOS. mypy would forget what it knows of Linux, so it has a
# second cache. What the rooms import beyond them (X-Switch, the daemon) is followed, and not reported.
ELSEWHERE = $(VENV)/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin --follow-imports silent $(filter-out \
	$(addprefix ewe/,xswitch database libcgi __pycache__),$(patsubst %/__init__.py,%,$(wildcard ewe/*/__init__.py))) \
	$(wildcard ewe/*.py)

HELLO_C = $(patsubst %.c,%-c,$(wildcard cgi-bin/hello.c))

.PHONY: help serve test packages quick lint format pytest pytest-versions test-all gigabyte applications zoo bench lab claims verdicts java libcgi docs pictures links counts where-tested clean
.DELETE_ON_ERROR:
.NOTPARALLEL: # lint before pytest, one installation at a time

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

serve: $(VENV)/.serve $(HELLO_C) ## the server with the sample site; ARGS="-f 8080" is the command line
	@exec $(VENV)/bin/ewe $(ARGS)

test: lint pytest ## style, types and tests; PART=lab: of one house; PYTEST_ARGS="-x FILE" is pytest's command line

packages: ## Debian's packages for the tests that are skipped without them: sudo make packages
	@$(PYTHON) tests/support/resources.py

quick: $(VENV)/.test ## the tests that start no process and take no half second, in less than a minute
	EWE_TEST_QUICK=1 $(VENV)/bin/pytest -n 3 --dist worksteal -m "not starts_processes and not takes_time" \
		--durations 5 --durations-min 0.7 $(ARGS) $(TESTS)

lint: $(VENV)/.test ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@if $(VENV)/bin/python -c 'from importlib.util import find_spec; exit(not all(map(find_spec, ("locust", "psycopg"))))'; \
	then echo $(VENV)/bin/mypy; $(VENV)/bin/mypy && echo "$(ELSEWHERE)" && $(ELSEWHERE); \
	else echo "The types are not checked: mypy needs locust and psycopg, and one is not installed"; fi

format: $(VENV)/.test ## put the source into the style that lint expects
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

pytest: $(VENV)/.test $(HELLO_C) ## the tests alone
	$(PYTEST) $(PYTEST_ARGS) $(TESTS)

# The tests whose outcome depends on Python's version.
pytest-versions: $(VENV)/.test $(HELLO_C)
	$(PYTEST) $(PYTEST_ARGS) -m "not starts_processes"
	$(PYTEST) $(PYTEST_ARGS) -m starts_processes $(VERSIONS_DIFFER)

# A name on PATH may be a shim without an interpreter (pyenv), so the rule asks each interpreter for its version.
# An interpreter that PYTHONS=... names must exist. WHICH=pytest-versions leaves out most tests.
test-all: ## the tests under every Python that is here; PYTHONS="python3.12 /some/python3.13" names them
	@passed=; for python in $(PYTHONS); do \
	  if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
	    echo "Python $$version ($$python)"; \
	    $(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=$$python $(WHICH) || exit 1; \
	    passed="$$passed $$version"; \
	  else \
	    echo "$$python: not found, or it does not run"; \
	    $(if $(filter file,$(origin PYTHONS)),:,exit 1); \
	  fi; \
	done; \
	test -n "$$passed" && echo "The tests pass under Python$$passed."

gigabyte: $(VENV)/.test ## 1 GB in and out through every gateway under every model, in constant memory (ten minutes)
	EWE_TEST_MEGABYTES=1024 $(VENV)/bin/pytest tests/gateway/test_every_gateway.py -k long_bodies $(ARGS)

applications: $(VENV)/.test ## programs of others (git, cgit, Fossil, calendars, WordPress ...) under every model
	EWE_TEST_APPLICATIONS=1 $(VENV)/bin/pytest tests/applications tests/sites/test_git.py packages/ewe-lab/tests/test_wordpress.py $(ARGS)

zoo: $(VENV)/.test ## every broken server of the zoo, which the grader must catch; `make test` has one for each check
	EWE_TEST_ZOO=1 $(VENV)/bin/pytest $(PYTEST_ARGS) $(TESTS_classroom) $(ARGS)

bench: $(VENV)/.lab ## measure ewe's models beside nginx (needs nginx and wrk)
	$(VENV)/bin/ewe-lab speed $(ARGS)

lab: $(VENV)/.lab ## comparisons and experiments; ARGS="compare -f -t" is the command line of ewe-lab
	$(VENV)/bin/ewe-lab $(ARGS)

# ROWS: ids of experiments, or documents by their prefix (E X L R T), ewe: those that are ours; without it all.
ROWS ?=
claims: $(VENV)/.lab ## measure claims of the papers on a quiet machine, and write their page; ARGS="--minutes 40"
	$(VENV)/bin/ewe-lab renew $(ROWS) $(ARGS) --page packages/ewe-lab/docs/claims.md --reports packages/ewe-lab/reports

verdicts: $(VENV)/.lab ## judge the kept reports again after a change of the rules, and write the page of claims
	$(VENV)/bin/ewe-lab claims packages/ewe-lab/reports/*.json --page packages/ewe-lab/docs/claims.md

java: $(VENV)/.serve ## the Java engine of X-Switch, and the lab's servlets (needs Maven, a JDK, and the network once)
	$(VENV)/bin/ewe-xswitch java
	PYTHONPATH=packages/ewe-lab $(VENV)/bin/python -m ewe_lab.stacks.servlets

libcgi: $(VENV)/.serve ## LibCGI and its samples, libcgi-bin/* (needs a C compiler; C++ and Rust if they are here)
	$(VENV)/bin/ewe --build-libcgi
	$(VENV)/bin/python -m ewe.libcgi.samples

docs: $(VENV)/.test ## what is generated in docs/ and share/: settings, list of files, manual page, completion of shells
	$(VENV)/bin/python -m ewe.config > docs/settings.md.new
	mv docs/settings.md.new docs/settings.md
	$(VENV)/bin/python -m ewe.xswitch.settings_page > docs/xswitch-settings.md.new
	mv docs/xswitch-settings.md.new docs/xswitch-settings.md
	$(VENV)/bin/python tests/support/rooms.py
	$(VENV)/bin/python share/make.py

pictures: $(VENV)/.test ## the pictures of ewe-watch's docs, from real runs (needs Chromium; pngquant makes them small)
	$(VENV)/bin/python packages/ewe-watch/tests/pictures.py $(ARGS)

counts: $(VENV)/.test ## count the system calls and Python calls of a request, and write tests/house/counts.toml
	EWE_TEST_WRITE_COUNTS=1 $(VENV)/bin/pytest tests/house/test_counts.py $(ARGS)

where-tested: $(VENV)/.test ## run all tests, and write which of them test each module (tests/README.md; Python 3.12)
	$(VENV)/bin/python tests/support/where_tested.py $(ARGS)

links: $(VENV)/.test ## ask every external link of the documents whether it still answers (needs the network)
	@PYTHONPATH=tests $(VENV)/bin/python tests/support/links.py

clean: ## remove all files that make and the tools have created
	rm -rf .venv .venv-* ewe/xswitch/engines/java/target packages/ewe-lab/ewe_lab/stacks/servlets/target ewe/libcgi/target ewe/xswitch/engines/libcgi libcgi-bin/*.so build dist packages/*/build packages/*/dist packages/*/.hypothesis packages/*/.pytest_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis cgi-bin/hello-c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

cgi-bin/hello-c: cgi-bin/hello.c
	@if command -v $(CC) >/dev/null; then $(CC) -O2 -o $@ $< || echo "$@ could not be built"; \
	else echo "No C compiler: $@ is not built"; fi

# The virtual environment. Files in it say what is done: .made, then what is installed (.serve, .test, .lab).
# make creates it again if an installation was interrupted, the clone was moved, or its Python does not exist any more.
# It deletes nothing else: an environment of another clone, or a directory without one, stays (VENV=DIR).
OTHER_CLONE = $(filter-out $(CURDIR),$(shell cat $(VENV)/.made 2>/dev/null))
ifneq ($(and $(filter-out .venv,$(VENV)),$(if $(wildcard $(VENV)/pyvenv.cfg),,$(wildcard $(VENV)/*))),)
$(error $(VENV) is not empty, and no virtual environment: name another directory, VENV=DIR)
endif
ifneq ($(and $(OTHER_CLONE),$(wildcard $(OTHER_CLONE)/Makefile),$(filter-out $(CURDIR)/%,$(abspath $(VENV)))),)
$(error $(VENV) is the environment of $(OTHER_CLONE): name another directory, VENV=DIR)
endif
ifneq ($(shell { test ! -e $(VENV)/.unfinished && grep -qxF '$(CURDIR)' $(VENV)/.made && $(VENV)/bin/python -c ''; } 2>/dev/null && echo sound),sound)
$(shell rm -f $(VENV)/.made)
endif

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("ewe needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV), this once ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@echo '$(CURDIR)' > $@

$(VENV)/.serve: WHAT = -e '.[pages]'
$(VENV)/.test: WHAT = -e '.[test,lint]' -e packages/ewe-explore -e packages/ewe-classroom -e packages/ewe-lab \
	-e packages/ewe-watch
$(VENV)/.test: THEN = $(VENV)/bin/python tests/support/few_tests.py
$(VENV)/.lab: WHAT = -e . -e 'packages/ewe-lab[locust]'
$(VENV)/.lab: THEN = $(PIP_INSTALL) -e 'packages/ewe-lab[servers]' >$(VENV)/servers.log 2>&1 || \
	  echo "A server of Python applications does not install here ($(VENV)/servers.log): its rows are not run"

# Newer versions of pip read the constraints for builds from another variable.
PIP_INSTALL = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/python -m pip install --quiet

$(VENV)/.test $(VENV)/.lab: $(wildcard packages/*/pyproject.toml)

$(VENV)/.serve $(VENV)/.test $(VENV)/.lab: $(VENV)/.made pyproject.toml constraints.txt
	@touch $(VENV)/.unfinished
	@$(PIP_INSTALL) $(WHAT)
	@$(THEN)
	@$(PIP_INSTALL) uvloop >$(VENV)/uvloop.log 2>&1 || \
	  echo "uvloop does not install here ($(VENV)/uvloop.log says why): ewe uses asyncio's own loop"
	@rm $(VENV)/.unfinished
	@touch $@
