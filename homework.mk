# Targets of the homework. Included by Makefile, which defines PY and the environment .venv/.stamp.

.PHONY: homework grade

# Run the masters whose code, package or pins changed; see grading/release.py.
homework: .venv/.stamp  ## write the starters, solutions and tests of the homework
	$(PY) -m grading release

# make grade SUBMISSIONS=dir [SEED=file] [ASSIGNMENT=01-kernels] [OUT=dir] [OPTIONS="--dry-run"]
grade: .venv/.stamp  ## mark a folder: make grade SUBMISSIONS=dir OUT=dir
	@test -n "$(SUBMISSIONS)" || { echo "expected make grade SUBMISSIONS=folder, got no folder"; exit 2; }
	$(PY) -m grading grade "$(SUBMISSIONS)" $(if $(SEED),--seed "$(SEED)") \
	  $(if $(ASSIGNMENT),--assignment "$(ASSIGNMENT)") $(if $(OUT),--out "$(OUT)") $(OPTIONS)
