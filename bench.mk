# Benchmarks. Included by Makefile, which defines PYTHON, PY and the environment .venv/.stamp.

.PHONY: bench

BENCH := .cache/bench

$(BENCH)/current/.stamp: requirements-bench.txt constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(BENCH)/tangents/.stamp: requirements-bench-tangents.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

# make bench [CASES="gram ridge"] [OPTIONS="--quick"]; alone on the machine, or it measures the others.
bench: .venv/.stamp $(BENCH)/current/.stamp $(BENCH)/tangents/.stamp  ## measure against peers: make bench CASES=…
	$(PY) -m benchmarks $(if $(CASES),--cases $(CASES)) $(OPTIONS)
