# On a fresh machine with Python and make, each of these creates .venv, installs what it needs and runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test pytest test-slow torture audit lint bench demo docs clean

install: .venv/.anaphor

# The types are checked beside the tests: that takes one core, and the tests wait for others now and then.
test: .venv/.test
	$(MAKE) -j 2 --no-print-directory lint pytest

pytest: .venv/.test
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: .venv/.test .venv/.ray .venv/.docs
	$(BIN)/pytest -m slow

# The faults that are promised to be survived, as an experiment of up to an hour on two cores: `make torture TORTURE=5` takes minutes.
TORTURE ?= 60
torture: .venv/.test .venv/.ray
	PYTHONPATH=tests $(BIN)/python -W ignore -m torture --minutes $(TORTURE) --out docs/results/faults.md

# Known weaknesses of the pinned packages, where the network allows to ask for them.
audit: .venv/bin/pip
	$(BIN)/pip install -q pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

lint: .venv/.lint
	$(BIN)/ruff check benchmarks docs/figures src tests
	$(BIN)/ruff format --check benchmarks docs/figures src tests
	$(BIN)/codespell README.md CHANGELOG.md docs benchmarks src
	$(BIN)/mypy

# The peer of decoding is a package of the tests.
bench: .venv/.test
	$(BIN)/python -m benchmarks; status=$$?; $(BIN)/python -m benchmarks --parts decoding --pairs 6 && exit $$status

demo: .venv/.anaphor
	$(BIN)/python -m anaphor.examples.demo

docs: .venv/.docs
	$(BIN)/zensical build --clean

clean:
	rm -rf .venv site

# The pip that comes with Python may be years old, and takes twice as long to choose versions; it would do.
.venv/bin/pip:
	$(PYTHON) -m venv .venv
	-$(BIN)/pip install -q --upgrade -c constraints.txt pip

# One stamp for the package and one for each of its extras: a change of the pins installs again, nothing else does.
.venv/.anaphor: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

# All that `make test` needs: pip looks for versions once instead of three times. All cores compile what is installed,
# not one as by pip, and leave out what hardly anybody imports: that is compiled when somebody does. PyPI's torchvision
# cannot be imported beside a torch for CPUs, and neither can parts of transformers while it is installed: there it is
# removed, with timm, which needs it, and the tests against timm are skipped.
.venv/.test: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[lint,oracles,test]'
	$(BIN)/python -c 'import torchvision' 2> /dev/null || $(BIN)/pip uninstall -q -y timm torchvision
	$(BIN)/python -m compileall -qq -j 0 -x '/tests/|/_internal/|/transformers/models/' .venv/lib || true
	touch .venv/.anaphor .venv/.lint $@

.venv/.%: .venv/.anaphor
	$(BIN)/pip install -q -c constraints.txt -e '.[$*]'
	touch $@
