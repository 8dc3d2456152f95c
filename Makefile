# Pippin's tasks. `make serve` and `make test` need Python 3.11 or newer with pip, and nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
ARGS ?=
# What MLX runs on: `cpu` or `cuda` on Linux; nothing on macOS, where MLX comes with Metal.
DEVICE ?= $(if $(filter Darwin,$(shell uname -s)),,cpu)
# How many processes share the tests, a file at a time. Three keep two cores busy, where two wait
# now and then, and fit into 8 GiB.
TEST_PROCESSES ?= 3
# What else to install, as in `make serve EXTRAS="mkl vision"`.
EXTRAS ?=

# Containers often forbid Python to keep what it compiled. Then each process of the tests, and there are hundreds,
# compiles all that it imports again, which takes longer than most tests do.
unexport PYTHONDONTWRITEBYTECODE

# Kernels compile while packages are installed and the demo model is fetched.
ifeq ($(MAKECMDGOALS),serve)
MAKEFLAGS += --jobs=3
endif

BIN := .venv/bin
DEMO := smollm2-135m-instruct
# A low temperature suits so small a model; the limit ends what it would repeat.
DEMO_OPTIONS := --temperature 0.2 --top-p 0.9 --repetition-penalty 1.1 --max-tokens 512
DEMO_FILE := .cache/demo/SmolLM2-135M-Instruct.Q4_1.gguf
TEST_MODELS := .cache/.test-models
DEMO_FOLDER = $(BIN)/pippin show $(DEMO) --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["path"])'
BENCH := .cache/bench
LOCK := uv.lock pyproject.toml
SYNC := $(BIN)/uv sync --frozen --inexact --python $(BIN)/python $(addprefix --extra ,$(DEVICE) $(EXTRAS))

# How many packages came is told; their names are in uv.lock.
WITHOUT_NAMES := 2> >(grep -v '^ [-+~] ' >&2)

SPACE := $(subst ,, )
# Stamps say what was installed; the device is part of their names.
UV := .venv/.uv
TO_SERVE := .venv/.to-serve-$(subst $(SPACE),-,$(strip $(DEVICE) $(EXTRAS)))
TO_TEST := .venv/.to-test-$(DEVICE)
IMPORTED := .venv/.imported
KERNELS := .venv/.kernels
KERNEL_LIBRARY := kernels/pippin_kernels/libpippin_kernels.so
ORACLE := .venv-oracle/.ready

.PHONY: help
help: ## Show this
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# Serving

.PHONY: serve
serve: $(TO_SERVE) $(if $(filter cpu,$(DEVICE)),$(KERNELS)) $(IMPORTED) $(if $(MODEL),,demo) ## Serve the demo model, or MODEL=PATH, on PORT=8000
	@exec $(BIN)/pippin serve $(or $(MODEL),$(DEMO) $(DEMO_OPTIONS)) --host $(HOST) --port $(PORT) $(ARGS)

.PHONY: demo
demo: $(TO_SERVE) $(DEMO_FILE) ## Fetch the demo model and import it
	@$(BIN)/pippin import $(DEMO_FILE) --name $(DEMO) --if-missing

# Python keeps the bytecode of what is imported, beside what is compiled and fetched, so that the first start is as
# short as later ones. What cannot be imported is the server's to say.
$(IMPORTED): $(TO_SERVE)
	@$(BIN)/python -c "import pippin.api.server, pippin.worker.main, pippin.engines.language.loading.engine, pippin.engines.language.prompt.preparer" 2>/dev/null || true
	@touch $@

# Checking

.PHONY: kernels
kernels: $(KERNELS) ## Compile the kernels for CPUs, with which models run as they are stored (needs a C compiler)

.PHONY: prepare
prepare: $(TO_TEST) $(if $(filter cpu,$(DEVICE)),$(KERNELS)) $(DEMO_FILE) $(TEST_MODELS) ## Install, compile and fetch what the tests need

.PHONY: test-fast
test-fast: $(TO_TEST) ## Run the tests without a model, a socket or a process
	$(BIN)/pytest --fast -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test
test: prepare lint ## Run the checks and the tests, in minutes
	@# What fails beside another process, as a test of times may, is judged alone; the first report stays to be read.
	@# Files go out in their order: by default those of few tests, which take the longest, would come last.
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS) || \
	  $(BIN)/pytest --last-failed --last-failed-no-failures none $(ARGS)

.PHONY: collect
collect: $(TO_TEST) $(TEST_MODELS) ## Import every test, which keeps what the processes of `make test` would each compile
	@found=$$($(BIN)/pytest --collect-only -qq) || { echo "$$found"; exit 1; }

.PHONY: corpus
corpus: $(TO_TEST) ## Make tests/corpus anew from the vendors' newest packages; print what is new, and which pinned programs are old
	$(BIN)/python -m tests.corpus
	$(BIN)/python -m tests.agents.newest

.PHONY: test-all
test-all: $(TO_TEST) $(DEMO_FILE) $(TEST_MODELS) $(ORACLE) lint ## Run the long tests too
	PIPPIN_ORACLE_PYTHON=$(CURDIR)/.venv-oracle/bin/python \
	  $(BIN)/pytest -m '' --timeout=1800 --hypothesis-profile=thorough $(ARGS)

.PHONY: test-long
test-long: prepare ## Run the long tests in groups, with a line for each; ONLY="cluster chaos" runs these
	@$(BIN)/python -m tests.long $(ONLY) $(ARGS)

.PHONY: test-oracle
test-oracle: $(TO_TEST) $(ORACLE) ## Compare the answers of every architecture with those of transformers
	PIPPIN_ORACLE_PYTHON=$(CURDIR)/.venv-oracle/bin/python \
	  $(BIN)/pytest -m '' --timeout=1800 tests/engines/language/architectures/test_published.py \
	  tests/engines/test_encoder_families.py tests/engines/language/vision/test_oracle.py tests/engines/whisper $(ARGS)

.PHONY: schedules
schedules: $(TO_TEST) $(DEMO_FILE) ## Run N=1000 random schedules on every kind of cache
	PIPPIN_SCHEDULES=$(or $(N),1000) $(BIN)/pytest -m long -s tests/engines/language/step/test_schedules.py $(ARGS)

# Tests, the checkpoints of a Mac that they run with, and its memory. What asks for equal answers rounds evenly (vision).
AS_ON_A_MAC := step:bfloat16 step:4bit step:mxfp4:--mac=64 step:mixed:--mac=128 prefix_cache:4bit:--even kv_cache:bfloat16:--even sampling:bfloat16 \
  model/test_lora.py:4bit drafters:bfloat16:--even drafters:4bit vision:bfloat16:--even \
  ../test_language_embeddings.py:bfloat16:--even ../../drop_in:4bit architectures/test_every_architecture.py:bfloat16:-mlong
.PHONY: as-on-a-mac
as-on-a-mac: $(TO_TEST) $(DEMO_FILE) $(TEST_MODELS) ## Run the tests of the engine as on a Mac, whose GPU rounds to 16 bits
	@# What fails is tried again in another pattern of rounding.
	@for each in $(AS_ON_A_MAC); do \
	  IFS=: read -r tests form more <<< "$$each"; \
	  mac() { $(BIN)/pytest -p tests.as_on_a_mac.plugin -m 'not long and not model' --form $$form $$more \
	    tests/engines/language/$$tests $(ARGS) "$$@"; }; \
	  mac -n $(TEST_PROCESSES) --dist loadfile || \
	    mac --last-failed --last-failed-no-failures none --pattern 1 || exit 1; \
	done
	$(BIN)/pytest -m '' tests/as_on_a_mac $(ARGS)

.PHONY: first-gpu-run
first-gpu-run: $(TO_TEST) ## Measure in 8 minutes what only a GPU can tell, and write first-gpu-run.jsonl
	$(BIN)/python -m benchmarks.first_gpu_run $(ARGS)

.PHONY: lint
lint: $(TO_TEST) ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.PHONY: format
format: $(TO_TEST) ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: docs
docs: $(TO_TEST) ## Write the generated pages of docs/
	$(BIN)/python -m scripts.docs

.PHONY: install-check
install-check: demo ## Build the package, and install it as people do (Python 3.11 to 3.14, uv tool, pipx)
	@$(BIN)/python scripts/check_install.py --model "$$($(DEMO_FOLDER))" $(ARGS)

.PHONY: bench
bench: $(TO_TEST) demo ## Measure Pippin beside mlx_lm.server; ARGS="--clients 1 8"
	@$(SYNC) --group bench
	@test -d $(BENCH)/smollm2-f32 || $(BIN)/python -m benchmarks.weights "$$($(DEMO_FOLDER))" $(BENCH)
	$(BIN)/python -m benchmarks.compare --model $(BENCH)/smollm2-f32 $(ARGS)

.PHONY: chaos
chaos: $(TO_TEST) $(if $(filter cpu,$(DEVICE)),$(KERNELS)) demo ## Do the server's worst while clients check their answers
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: soak
soak: $(TO_TEST) $(TEST_MODELS) ## Serve mixed work for MINUTES=60 and show that nothing grows
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60) $(ARGS)

.PHONY: clean
clean: ## Remove the environments and what was fetched
	rm -rf .venv .venv-oracle .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Making the environment

$(UV): scripts/make_environment.sh
	@PYTHON=$(PYTHON) bash scripts/make_environment.sh
	@touch $@

$(TO_SERVE): $(UV) $(LOCK)
	@echo "Installing what serving needs (once; some hundred MB) ..."
	@$(SYNC) --no-dev $(WITHOUT_NAMES)
	@touch $@

$(TO_TEST): $(UV) $(LOCK)
	@echo "Installing what the tests need (once) ..."
	@$(SYNC) --group dev --extra vision --extra audio --extra mcp --extra cluster $(WITHOUT_NAMES)
	@touch $@ $(TO_SERVE)

# With the machine's own Python where the environment is being made, so that it need not wait for it. Where there is no C
# compiler, Pippin runs without the kernels, and their tests are skipped.
$(KERNEL_LIBRARY): $(wildcard kernels/c/*) kernels/compile.py
	@rm -f $@; $(if $(wildcard $(UV)),$(BIN)/python,$(PYTHON)) kernels/compile.py $@ --here || \
	  echo "Going on without the kernels for CPUs; once there is a compiler: make kernels"

$(KERNELS): $(KERNEL_LIBRARY) | $(UV)
	@echo "$(CURDIR)/kernels" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pippin_kernels.pth"
	@touch $@

.PHONY: sanitize
sanitize: $(UV) ## Run the kernels for CPUs under the address, undefined and thread sanitizers
	@$(BIN)/python kernels/tests/sanitize.py

.PHONY: check-kernels
check-kernels: $(UV) ## Hold the kernels for CPUs against plain loops
	@$(BIN)/python kernels/tests/check.py

ARM := qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu
.PHONY: check-kernels-arm
check-kernels-arm: $(UV) ## The same for ARM, emulated (needs gcc-aarch64-linux-gnu and qemu-user)
	@CC=aarch64-linux-gnu-gcc $(BIN)/python kernels/tests/check.py \
		--through "$(ARM) max" --through "$(ARM) neoverse-n1" --through "$(ARM) cortex-a57"

$(DEMO_FILE): | $(UV)
	@$(BIN)/python scripts/fetch_demo.py

$(TEST_MODELS): scripts/fetch_test_models.py scripts/fetch_templates.py | $(UV)
	@$(BIN)/python scripts/fetch_test_models.py
	@touch $@

$(ORACLE): $(UV) tests/oracles/requirements.txt
	@$(PYTHON) -m venv .venv-oracle
	@.venv-oracle/bin/python -m pip install --quiet --requirement tests/oracles/requirements.txt
	@touch $@
