# Two commands matter: `make demo` and `make test`. Both set everything up first, inside the checkout (.build/).
SHELL := /bin/bash
export PATH := $(CURDIR)/.build/bin:$(CURDIR)/.build/venv/bin:$(PATH)
PYTHON_CODE := slackwater detector lbengine web lab tools tests fuzz packaging ansible/plugins/modules

.PHONY: help setup setup-demo setup-arm64 setup-guests demo test test-full lint clean docs docs-site
.PHONY: bench-sniffer bench-sampling bench-monitor bench-lbengine bench-detector bench-web bench-controller
.PHONY: recordings screenshots compare chaos protocols
.PHONY: deb wheels repo image clean-install test-rollout

help:  ## shows this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## brings everything needed into .build/ (quick when nothing is missing)
	@python3 tools/setup.py

setup-demo:  ## brings what `make demo` needs into .build/, and no more
	@python3 tools/setup.py demo

setup-arm64: setup  ## brings what packages for arm64 need besides into .build/, and builds the programs for it
	@python3 tools/setup.py arm64

setup-guests:  ## builds the kernel of the lab's guests (--hosts uml), once: 9 minutes of CPU; it is kept in ~/.cache/slackwater
	@python3 tools/setup.py guests

demo: setup-demo  ## the whole loop in four acts: calm, a noisy neighbour, and with Slackwater: balancer alone, monitors (DEMO_STAY=1 stays)
	slackwater lab demo

lint: setup  ## formatting, lints and types of both languages; generated documents up to date
	ruff check $(PYTHON_CODE)
	ruff format --check $(PYTHON_CODE)
	mypy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null
	python tools/version.py --check
	python tools/lock.py --check
	python tools/audit.py
	python tools/schema.py --check
	python -m tools.reference_docs --check

test: lint  ## everything that must hold on each change
	@python tools/run_tests.py -m "not slow"

test-full: lint  ## also the slow stories
	python tools/fuzz.py --minutes 18
	@python tools/run_tests.py --hypothesis-profile=others

bench-sniffer: setup  ## the sniffer beside tcpdump, tshark and oha, on captures and traffic made here (root; 15 minutes)
	python -m slackwater_lab.bench.sniffer --write docs/results/bench-sniffer.md

bench-sampling: setup  ## figures of samples of the connections beside those of all, on generated traffic and captures (1 minute)
	cargo run --release --locked -p slackwater-sniffer --example sampling > docs/results/sampling.md

bench-detector: setup  ## from a Sample's arrival to its Verdict, 2,500 to 10,000 nodes on one core (10 minutes, on a quiet machine)
	python -m slackwater_lab.bench.detector --hour 400 --write docs/results/bench-detector.md

deb: setup $(if $(filter arm64,$(DEB_ARCH)),setup-arm64)  ## Debian packages in target/packages, the same bytes each time (DEB_REVISION=1, DEB_RELEASE=noble, DEB_ARCH=arm64)
	python packaging/build.py --revision $(or $(DEB_REVISION),1) --release $(or $(DEB_RELEASE),bookworm) $(DEB_ARCH:%=--architecture %)

wheels: setup  ## the wheels of Slackwater and its lab in target/packages, the same bytes each time
	python packaging/wheels.py

image: deb  ## what the controller's container image is built from, in target/image (root)
	python packaging/image.py --package "$$(ls -t target/packages/slackwater-controller_*_amd64.deb | grep -v +deb | head -1)"

clean-install: setup $(if $(filter arm64,$(ARCH)),setup-arm64)  ## install, act, upgrade and remove on a plain system, with the time of each step (root; RELEASE=noble, ARCH=arm64)
	python -m tools.clean_install --release $(or $(RELEASE),bookworm) $(ARCH:%=--architecture %)

repo: setup  ## apt repository of target/packages in REPO=target/repository, signed with gpg's key KEY=ADDRESS
	python packaging/repository.py --key "$(KEY)" --out $(or $(REPO),target/repository)

test-rollout: setup  ## the rollout on hosts of its own: converge, upgrade, failures, removal (root; 25 minutes, and 10 for each further site)
	pytest tests/packaging/test_packages.py tests/packaging/test_controller_package.py tests/packaging/test_rollout*.py

recordings: setup  ## fresh recordings in the lab, a model trained on half, scores on the others (root; 4 hours, quiet)
	python -m slackwater_lab.bench.recordings

bench-monitor: setup  ## the monitor beside node_exporter and collectd, and what it costs the web server (root; 30 minutes)
	python -m slackwater_lab.bench.monitor --write docs/results/bench-monitor.md

bench-lbengine: setup  ## Verdict to weight set with 100 servers, and 1,000 weights in one batch, on a real HAProxy
	python -m slackwater_lab.bench.lbengine

bench-controller: setup  ## CPU and memory of each process of a controller with 3 nodes in calm (2 minutes)
	python -m slackwater_lab.bench.controller

bench-web: setup  ## the dashboard with 300 servers and 90 days: the server's time, a drawn page, 50 viewers (5 minutes)
	python -m slackwater_lab.bench.web --write docs/results/bench-web.md

screenshots: setup  ## takes the screenshots of the dashboard in docs/screenshots, over a whole controller (3 minutes)
	python -m tools.screenshots

MINUTES :=

compare: setup  ## users' response times with Slackwater, with other balancers and with an oracle (root, quiet; 70 minutes; MINUTES=10: a piece, goes on)
	slackwater lab compare --haproxy haproxy-3.4 --data docs/results/evaluation.jsonl --page docs/results/evaluation.md \
	  $(patsubst %,--also %,$(wildcard docs/results/evaluation-2.6.jsonl)) \
	  $(MINUTES:%=--minutes %)

chaos: setup  ## random faults in a cluster under load; what must hold is checked all the time (root; MINUTES=20 SEED=7)
	python -m tests.chaos.commands $(MINUTES:%=--minutes %) $(SEED:%=--seed %)

protocols: setup  ## lease and takeover under faults in simulated time (SCHEDULES=100000 SEED=1)
	python -m tests.simulation.commands $(SCHEDULES:%=--schedules %) $(SEED:%=--seed %)

docs: setup  ## writes the generated documents: schema/*.json, docs/reference/{settings,messages,metrics,api,command-line}.md, docs/how-it-works/lab-commands.md
	python tools/schema.py
	python -m tools.reference_docs

docs-site:  ## the documentation as a site with search, in target/site (open target/site/index.html)
	@python3 tools/setup.py docs
	python3 tools/docs_site.py

clean:  ## removes what setup and builds made
	rm -rf .build target
