# `make demo` and `make test` need Python >= 3.11 and make; they set up everything else.
PYTHON ?= python3
BIN := .venv/bin
UV := .cache/uv/bin/uv
# Threads that wait must not spin: on a busy machine spinning made everything many times slower.
export OMP_WAIT_POLICY := PASSIVE
# Tests start Python hundreds of times: without cached bytecode each start compiles a hundred modules.
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
.PHONY: help setup demo tour best test test-lowest test-runs test-slow nightly newest judges formats browser chromium \
	lint format kill gpu guard mutations bench notebooks torch111 lock lock-lowest lock-judges lock-export lock-browser clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/ready  ## .venv with the locked versions (quick when present)

.venv/ready: requirements.lock
.venv-lowest/ready: requirements/lowest.lock
LISTS := $(addprefix requirements/, base.txt search.txt dev.txt)
.venv/ready .venv-lowest/ready: requirements.txt $(LISTS) pyproject.toml input/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 setup"; exit 1; }
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
		-r requirements.txt -c $(filter %.lock,$^)
	@touch $@

# These see what is in .venv, .pth files included: a third copy of torch would be 6 GB
PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-judges/made .venv-export/made .venv-browser/made .venv-newest/made: .venv-%/made: .venv/ready
	@test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" \
		> $$($(@D)/bin/python -c '$(PACKAGES)')/of_venv.pth
	@touch $@
.venv-judges/ready .venv-export/ready .venv-browser/ready: .venv-%/ready: .venv-%/made requirements/%.txt requirements/%.lock
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
		-r requirements/$*.txt -c requirements.lock -c requirements/$*.lock
	@touch $@

demo: setup  ## draw, curate, train, export and score: notebooks 01 to 06, about 10 minutes on 2 CPU cores
	$(BIN)/python notebooks/run.py

tour: setup  ## all notebooks in order, about 25 minutes on 2 CPU cores
	$(BIN)/python notebooks/run.py --all

# Each step runs once, and a training that was stopped resumes. Only the existence of a step's file counts
REAL := $(or $(GUIE_REAL),../shared)/data/mini-uned/manifest.csv
TRAIN = $(BIN)/accelerate launch src/train.py --resume --config
best: submissions/best/score.json  ## train, export and score the best model on mini-uned (GUIE_REAL), 30 minutes on a GPU, 8 hours on 2 CPU cores (estimated)
submissions/best/score.json: | submissions/best/submission.zip
	$(BIN)/python src/score.py --submission submissions/best/submission.zip --manifest $(REAL) --out $@
submissions/best/submission.zip: | runs/best/student/summary.json
	$(BIN)/python src/export.py --run runs/best/student --out submissions/best
runs/best/student/summary.json: | runs/best/start/summary.json
	$(TRAIN) configs/best_real.yaml
runs/best/start/summary.json: | $(foreach seed,0 1 2,$(foreach loss,arcface supcon,runs/best/$(loss)_$(seed)/summary.json))
	$(BIN)/python src/compose.py --config configs/compose/best_start.yaml
runs/best/arcface_%/summary.json: | setup
	$(TRAIN) configs/teachers/arcface.yaml --set seed=$* --set name=arcface_$*
runs/best/supcon_%/summary.json: | setup
	$(TRAIN) configs/teachers/supcon.yaml --set seed=$* --set name=supcon_$*

notebooks: setup  ## run the notebooks on the smoke configs, as CI does
	$(BIN)/python notebooks/run.py --smoke

test: setup  ## the test suite
	$(BIN)/python -m pytest -n 2

# What another version of a library can break, and the road from curate to submit. Rules in plain Python
# (configs, manifests, studies, what a killed run leaves) are tested once, by `make test`.
VERSIONED := $(addprefix tests/, losses models data evaluation training ensembles report export scorer test_road.py)
PLAIN := $(addprefix --ignore=tests/, data/test_archives.py data/datasets data/manifest training/test_faults.py \
	training/test_starting.py training/test_train_refusals.py)

test-lowest: .venv-lowest/ready  ## tests that depend on libraries, on the lowest versions that requirements.txt allows
	.venv-lowest/bin/python -m pytest -n 2 $(VERSIONED) $(PLAIN)

# One whole run of each kind: from shards, killed and resumed, by several processes, distilled, composed, scored
RUNS := $(addprefix tests/, test_shards_road.py test_startup.py curation/test_planted.py ensembles/test_side_by_side.py \
	scorer/test_score_script.py search/test_index.py training/test_distilled.py training/test_kills.py \
	training/test_processes.py)

test-runs: setup  ## whole runs, one of each kind, which CI runs after make test
	$(BIN)/python -m pytest -n 2 -m slow $(RUNS)

test-slow: setup  ## all tests of whole runs, of several processes and of minutes, which make test leaves out
	$(BIN)/python -m pytest -n 2 -m slow

nightly: test-slow browser newest mutations  ## what CI leaves out

newest: .venv-newest/made  ## the newest timm and open_clip: whether models still open and export
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade timm open_clip_torch
	.venv-newest/bin/python -m pytest -n 2 tests/models tests/export

judges: .venv-judges/ready  ## agreement with mteb, torchmetrics and peft; vector databases; S3; Ray
	.venv-judges/bin/python -m pytest tests/judges tests/evaluation/test_agreement.py \
		tests/data/shards/test_object_storage.py tests/test_shards_road.py tests/rows/test_bucket.py tests/rows/test_ray.py tests/search/test_index_in_bucket.py tests/search/test_push.py

formats: .venv-export/ready  ## ONNX and .pt2 against the model, with onnxruntime in an environment of its own
	.venv-export/bin/python -m pytest tests/export/test_life.py

browser: chromium .venv-browser/ready  ## the pages in a real browser: Debian's Chromium, driven by playwright
	.venv-browser/bin/python -m pytest tests/browser

chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
			&& apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
		|| { echo "Chromium is needed, nothing was tested; on Debian: apt-get install chromium"; exit 1; }

lint: setup  ## ruff: rules and format; mypy: types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

kill: setup  ## kill a training run 20 times at random moments; it must end at the same bits
	$(BIN)/python tests/kills.py --kills 20

gpu: setup  ## what needs a GPU, in under 10 minutes: training, resuming, precisions, speed, memory
	$(BIN)/python tests/on_gpu.py

guard: setup  ## short runs of this tree and of another commit must be equal (AGAINST=main ONLY="search studies")
	$(BIN)/python tests/guard.py $(if $(AGAINST),--against $(AGAINST)) $(if $(ONLY),--only $(ONLY))

mutations: setup  ## plant random faults in the source and see which the tests notice (ROOMS="losses scorer")
	$(BIN)/python tests/mutations.py $(if $(ROOMS),--rooms $(ROOMS))

bench: setup  ## benchmarks: ratios against peers, in one run
	$(BIN)/python tests/bench/margin.py
	$(BIN)/python tests/bench/loader.py
	$(BIN)/python tests/bench/embedding.py worker
	$(BIN)/python tests/bench/frozen.py
	$(BIN)/python tests/bench/adapters.py
	$(BIN)/python tests/bench/distillation.py
	$(BIN)/python tests/bench/curation.py
	$(BIN)/python tests/bench/planted.py --images 150 --each 6
	$(BIN)/python tests/bench/searching.py update first exact

torch111: setup  ## load exported models in the real PyTorch 1.11 (needs g++, downloads 750 MB)
	$(BIN)/python tests/torch111/check.py --cache .cache/torch-1.11 $(wildcard submissions/*/submission.zip)
	$(BIN)/python -m pytest -m slow tests/torch111

lock: setup  ## renew requirements.lock from .venv
	@{ head -2 requirements.lock; $(BIN)/python -m pip freeze --exclude-editable --exclude guie; } \
		> requirements.lock.new && mv requirements.lock.new requirements.lock

lock-lowest: $(UV)  ## renew requirements/lowest.lock from the bounds in requirements.txt
	@{ head -2 requirements/lowest.lock; $(UV) pip compile --quiet --resolution lowest-direct \
		--python-version 3.11 --no-header --no-annotate --no-emit-package guie --no-emit-package toydomains \
		requirements.txt; } \
		> requirements/lowest.new && mv requirements/lowest.new requirements/lowest.lock

lock-judges:  ## renew requirements/judges.lock from .venv-judges
lock-export:  ## renew requirements/export.lock from .venv-export
lock-browser:  ## renew requirements/browser.lock from .venv-browser
lock-judges lock-export lock-browser: lock-%: .venv-%/ready
	@{ head -2 requirements/$*.lock; \
		.venv-$*/bin/python -m pip freeze --exclude-editable --exclude guie \
		| grep -vxFf requirements.lock; } \
		> requirements/$*.new && mv requirements/$*.new requirements/$*.lock

$(UV):
	@$(PYTHON) -m venv .cache/uv && .cache/uv/bin/pip install --quiet uv

clean:  ## remove what the demo made
	rm -rf runs/demo runs/clip_demo runs/smoke runs/clip_smoke submissions/demo submissions/smoke
