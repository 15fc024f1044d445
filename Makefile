# make            build bin/rdsd
# make run        build and show it: rdsd demo, until Ctrl-C
# make test       set up what the tests need (apt, as root) and run every test there is
# make help       the other targets

GO      ?= go
PYTHON  ?= python3
BIN     := bin/rdsd
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
GO_LDFLAGS := -s -w -X github.com/rdsd/rdsd/node/base.version=$(VERSION)
TOOL    := $(GO) tool -modfile=tools/go.mod
SEED    ?= 1
T       ?= 1m

.PHONY: build
build: $(BIN)

.PHONY: $(BIN)
$(BIN):
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(GO_LDFLAGS)' -o $(BIN) ./rdsd
	@for n in rds-ping rds-info rds-stress; do ln -sf rdsd bin/$$n; done

.PHONY: run
run: build ## two nodes on loopback, talking; FOR=10s ends it by itself
	$(BIN) demo $(if $(FOR),--for $(FOR))

.PHONY: c
c: ## the C library: sdk/c/build/librdsd.so.1, librdsd.a
	$(MAKE) -C sdk/c

.PHONY: setup
setup: ## install what the tests need (Debian, root)
	scripts/setup.sh

.PHONY: test
test: setup build ## every test there is, with a count of what was skipped and why
	$(PYTHON) scripts/test.py

.PHONY: quick
quick: ## the fast part of the tests: no kernel, no Python, few seeds
	$(GO) test -short ./...

.PHONY: verify
verify: ## format, vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt'ed: $$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

.PHONY: sim
sim: ## replay one simulated world with a readable trace: make sim SEED=n
	$(GO) test ./internal/simtest -run 'TestSeed$$' -v -sim.seed=$(SEED)

.PHONY: mutants
mutants: ## break rules by hand, one at a time; the simulators must find each
	$(GO) run ./internal/mutate -rules

.PHONY: mutate
mutate: ## break the product one line at a time and count what the tests notice: make mutate N=100 SEED=1
	$(GO) run ./internal/mutate -sweep -n $(or $(N),100) -seed $(SEED) -least 95

.PHONY: walk
walk: ## list the functions that one datagram passes, into docs/architecture.md
	$(GO) test ./internal/walk -run TestWalk -walk.update -v -count=1

.PHONY: fuzz
fuzz: ## every fuzz target for T each: make fuzz T=1m
	scripts/fuzz.sh $(T)

.PHONY: soak
soak: build ## long runs: an hour of seeds, of kernel interop, of volumes whose paths, daemons and stores fail, and of an adversary
	$(GO) test ./internal/simtest -run TestSeeds -v -timeout 3h -sim.seeds=200000
	$(GO) test ./interop -v -timeout 3h -interop.rounds=20
	RDSD_BIN=$(CURDIR)/$(BIN) $(GO) test ./internal/volumetest -v -timeout 3h -volumetest.traffic=1h -volumetest.kills=2000 -volumetest.ghosts=1000 -volumetest.rdma=1 -volumetest.stall=60s
	RDSD_BIN=$(CURDIR)/$(BIN) $(GO) test ./internal/adversary -v -timeout 2h -adversary.time=1h
	RDSD_BIN=$(CURDIR)/$(BIN) $(GO) test ./internal/processtest -v -timeout 1h -run EverySystemCall -processtest.every
	$(GO) test ./interop/kernelnbd -v -timeout 1h -run 'TestDaemons|EverySystemCall' -traffic 17 -every
	$(GO) test ./test/vm -v -timeout 8h -vm.soak
	RDSD_BIN=$(CURDIR)/$(BIN) $(GO) test ./internal/memtest -v -timeout 1h -run 'TestManyPeersAndSockets|TestCrowdInACgroup' -memtest.whole

.PHONY: bench
bench: build ## the report of ratios, each against a baseline in the same run
	RDSD_BIN=$(CURDIR)/$(BIN) $(GO) test ./internal/bench -run 'TestBenchReport$$' -v -timeout 90m -bench.report $(BENCH)

.PHONY: bench-vm
bench-vm: build ## the rest of that report: beside a kernel's RDS, RNBD and NBD, in a virtual machine whose clock counts instructions
	$(GO) test ./test/vm -run 'TestBench' -v -timeout 120m -vm.bench -vm.rdsd $(CURDIR)/$(BIN) $(BENCH)

.PHONY: proto
proto: ## generate api/ anew (needs npm for buf) and the Python stubs
	scripts/proto.sh

.PHONY: clean
clean:
	rm -rf bin out .cache
	$(MAKE) -s -C sdk/c clean

.PHONY: help
help:
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12
