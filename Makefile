# Everything a clone needs, with GNU make and Python 3.11 or newer: `make serve`, `make test`.

PYTHON ?= python3
VENV ?= .venv
PYTHONS ?= python3.11 python3.12 python3.13
PYTEST_ARGS ?= -n 3 --dist worksteal
ARGS ?=

HELLO_C = $(patsubst %.c,%-c,$(wildcard cgi-bin/hello.c))

.PHONY: help serve test lint format pytest test-all bench lab java docs clean
.DELETE_ON_ERROR:
.NOTPARALLEL: # lint before pytest, one installation at a time

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

serve: $(VENV)/.serve $(HELLO_C) ## the server with the sample site; ARGS="-f 8080" is the command line
	@exec $(VENV)/bin/ewe $(ARGS)

test: lint pytest ## style, types and tests; PYTEST_ARGS="-x tests/test_http.py" is pytest's command line

lint: $(VENV)/.test ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.test ## put the source into the style that lint expects
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

pytest: $(VENV)/.test $(HELLO_C) ## the tests alone
	$(VENV)/bin/pytest $(PYTEST_ARGS)

# A name found on PATH may still be an empty promise (a pyenv shim), so each interpreter is asked for its
# version. One that was named in PYTHONS=... has to be there.
test-all: ## the tests under every Python that is here; PYTHONS="python3.12 /some/python3.13" names them
	@passed=; for python in $(PYTHONS); do \
	  if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
	    echo "Python $$version ($$python)"; \
	    $(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=$$python pytest || exit 1; \
	    passed="$$passed $$version"; \
	  else \
	    echo "$$python: not found, or it does not run"; \
	    $(if $(filter file,$(origin PYTHONS)),:,exit 1); \
	  fi; \
	done; \
	test -n "$$passed" && echo "The tests pass under Python$$passed."

bench: $(VENV)/.lab ## ewe's models beside nginx (needs nginx and wrk)
	$(VENV)/bin/ewe-lab speed $(ARGS)

lab: $(VENV)/.lab ## comparisons and experiments; ARGS="compare -f -t" is the command line of ewe-lab
	$(VENV)/bin/ewe-lab $(ARGS)

java: $(VENV)/.serve ## the Java engine of X-Switch (needs Maven, a JDK, and the network once)
	$(VENV)/bin/ewe-xswitch java

docs: $(VENV)/.serve ## docs/settings.md, from the definitions in ewe/config.py
	$(VENV)/bin/python -m ewe.config > docs/settings.md.new
	mv docs/settings.md.new docs/settings.md

clean: ## remove all that make and the tools have made
	rm -rf .venv .venv-* ewe/xswitch/engines/java/target build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis cgi-bin/hello-c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

cgi-bin/hello-c: cgi-bin/hello.c
	@if command -v $(CC) >/dev/null; then $(CC) -O2 -o $@ $< || echo "$@ could not be built"; \
	else echo "No C compiler: $@ is not built"; fi

# The virtual environment. Files in it say what is done: .made, then what is installed (.serve, .test,
# .lab). It is made anew if an installation was cut short, the clone was moved, or its Python has gone.
ifneq ($(shell { test ! -e $(VENV)/.unfinished && grep -qxF '$(CURDIR)' $(VENV)/.made && $(VENV)/bin/python -c ''; } 2>/dev/null && echo sound),sound)
$(shell rm -f $(VENV)/.made)
endif

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("ewe needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV), this once ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@echo '$(CURDIR)' > $@

$(VENV)/.serve: WHAT = .
$(VENV)/.test: WHAT = .[test,lint]
$(VENV)/.lab: WHAT = .[lab]

# Newer versions of pip want the constraints of what a build needs under a name of its own.
PIP_INSTALL = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/python -m pip install --quiet

$(VENV)/.serve $(VENV)/.test $(VENV)/.lab: $(VENV)/.made pyproject.toml constraints.txt
	@touch $(VENV)/.unfinished
	@$(PIP_INSTALL) -e '$(WHAT)'
	@$(PIP_INSTALL) uvloop >$(VENV)/uvloop.log 2>&1 || \
	  echo "uvloop does not install here ($(VENV)/uvloop.log says why): ewe uses asyncio's own loop"
	@rm $(VENV)/.unfinished
	@touch $@
