.PHONY: help demo unit test long search soak check bench claims setup clean
help:
	@echo "make demo   a real sweep on this machine, from nothing to a report of results"
	@echo "make unit   the tests without Ray and TensorFlow: the inner loop"
	@echo "make test   every test that this machine can run, but for the long ones"
	@echo "make long   the others: hosts taken down and launched again (root), kills of a driver, the deepest networks"
	@echo "make search every property test with a hundred times its examples, drawn at random (hours)"
	@echo "make soak   forty minutes of faults on hosts of namespaces, then what is doubled, lost or left (root; MINUTES=4)"
	@echo "make check  lint, types, layering"
	@echo "make bench  our claims against the alternatives, into benchmarks/results.json and README (ONE=launch: one;"
	@echo "            ONE=--go-on: those that the last run has not come to; some need root)"
	@echo "make claims README's table of claims, from benchmarks/results.json and the code as it is"
	@echo "make setup  what all of the above do first: the environment in .venv (GPU=1 for GPU nodes, TORCH=1 with PyTorch)"
	@echo "make clean  remove the environment, but not what it was set up with (GPU=…, TORCH=…), which the next setup keeps"

# Everything stands in .venv once this stamp is there; a change of what it was made from makes it again, and so does a
# GPU=… or TORCH=… that is not the one in the stamp.
READY := .venv/ready
STAMP := $(shell cat .venv/ready 2>/dev/null)
ifneq ($(filter-out $(STAMP),$(GPU:%=GPU=%) $(TORCH:%=TORCH=%)),)
.PHONY: $(READY)
endif
$(READY): pyproject.toml scripts/setup
	@scripts/setup
setup: $(READY)

# A shell that leads to a cluster is told that the demo is of this machine.
HERE := $(if $(RAY_API_SERVER_ADDRESS)$(RAY_ADDRESS),--address local)
demo: $(READY)
	@.venv/bin/sweep data make data/demo --images 512 --shards 4 --size 160x120 --classes 10
	@.venv/bin/sweep run search_spaces/demo.yaml --fresh $(HERE)

unit: $(READY)
	@.venv/bin/pytest -q --numprocesses=auto tests/unit

test: unit
	@.venv/bin/pytest --durations=20 --numprocesses=2 --dist=loadfile -m "not alone and not long" tests/integration
	@.venv/bin/pytest --durations=20 -m "alone and not long" tests/integration tests/cluster

long: $(READY)
	@.venv/bin/pytest --durations=20 -m long tests/integration tests/cluster

search: $(READY)
	@.venv/bin/pytest -m hypothesis --hypothesis-profile=search --timeout=0

# MINUTES=4 has each fault once; SEED=2 another order of them.
soak: $(READY)
	@.venv/bin/python -m tests.cluster.soak --minutes $(or $(MINUTES),40) --seed $(or $(SEED),1)

check: $(READY)
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/pytest -q tests/unit/test_layers.py

# ONE=launch runs one of them.
bench: $(READY)
	@.venv/bin/python benchmarks/run.py $(ONE)

claims: $(READY)
	@.venv/bin/python benchmarks/table.py

clean:
	rm -rf .venv
