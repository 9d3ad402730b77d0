# Thin names for scripts/; every target is idempotent.
.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-text test fuzz test-all test-clients bench gpu check install dist wheel
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1@/p' Makefile | awk -F@ '{ printf "%-16s %s\n", $$1, $$2 }'

setup: ## install what is missing: Debian packages, LibTorch in .venv
	@scripts/setup

build: setup ## set-up, then all: build/bin/tessera, the CUDA library, the tests
	@scripts/build

demo: setup ## build the program, train on a real clip with 2 ranks, sample, report (CLIP=path: your own clip)
	@scripts/build tessera
	@scripts/demo || { echo "demo: failed; the last lines above say where, and runs/demo keeps what was made" >&2; exit 1; }

demo-text: setup ## build the program, teach a small model what colours, shapes and places are called, judge what it paints (10 minutes)
	@scripts/build tessera
	@scripts/demo-text

test: build ## the tests, with a part of the large matrices
	@scripts/test -LE large

fuzz: ## ten minutes of mutated inputs for every reader of foreign bytes, under sanitizers (SECONDS=3600: longer)
	@scripts/fuzz --seconds $(or $(SECONDS),600)

test-all: build ## every test with the whole of every matrix (hours)
	@scripts/test --share 1

test-clients: build ## against diffusers, transformers, peft, DiffSynth, LyCORIS in a venv of its own (6 GB), to docs/clients.md
	@scripts/test-clients

bench: build ## time and memory against PyTorch FSDP2, to docs/benchmarks.md
	@scripts/bench-setup
	@.bench-venv/bin/python bench/run.py

gpu: ## on a machine with a GPU: eight minutes of stages, most valuable first (scripts/gpu-pack, made elsewhere, is what it needs), to docs/gpu
	@scripts/gpu; code=$$?; [ ! -e runs/gpu-results/results.tgz ] || scripts/gpu-results runs/gpu-results; exit $$code

install: setup ## program and library into PREFIX (default ~/.local, root: /usr/local); DESTDIR for packagers
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install

dist: setup ## dist/tessera-*.tar.gz: the program alone, runs anywhere beside a torch wheel
	@scripts/dist

wheel: setup ## dist/tessera-*.whl: the program and the libraries that it needs, for pip; requires torch
	@scripts/wheel

check: ## formatting, include directions, no machine paths, the shape of the code
	@scripts/check
