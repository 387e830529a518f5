# Targets of the book. Included by Makefile, which defines PY and the environment .venv/.stamp.

SITE := _build/html

.PHONY: book serve lab notebooks seeds

book: .venv/.stamp  ## build the site in _build/html
	$(PY) -m book
	@echo "The book is in $(SITE). To read it: make serve"

serve: book  ## build the site and show it on http://localhost:8000
	@echo "http://localhost:8000"
	$(PY) -m http.server 8000 --bind 127.0.0.1 --directory $(SITE)

# Run the chapters whose text, package or pins changed; see book/notebooks.py.
# make notebooks CHAPTERS="04-ntk 04-ntk-notes" looks at these alone.
notebooks: .venv/.stamp  ## run the chapters that changed, or of these: make notebooks CHAPTERS=04-ntk
	$(NOTEBOOKS) $(PY) -m book.notebooks $(CHAPTERS)

# Copies, so that exploring never rewrites a chapter; a copy that exists is kept.
lab: .venv/.stamp  ## open copies of the chapters in JupyterLab
	mkdir -p my
	for chapter in chapters/*.ipynb; do [ -e "my/$${chapter##*/}" ] || cp "$$chapter" my/; done
	$(PY) -m jupyterlab my

# Every check under ten other master seeds; what is stored and current is kept. See book/seeds.py.
seeds: .venv/.stamp  ## run every check again with other random numbers (about an hour)
	$(NOTEBOOKS) $(PY) -m book.seeds
