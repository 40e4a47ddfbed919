# The addresses and other settings of `make run`, for example: make run EDGE=127.0.0.1:9000 STACK=second
EDGE ?= 127.0.0.1:8080
ENVOY_ADMIN ?= 127.0.0.1:9901
SIDECAR_ADMIN ?= 127.0.0.1:9090
UPSTREAM ?= 127.0.0.1:8081
REDIS ?= 127.0.0.1:6380
REDIS_URL ?=
CONCURRENCY ?= 2
STACK ?= demo
CONFIG ?=
ENVOY ?=
TRACE_ENDPOINT ?=
DETACH ?=
PROMETHEUS ?= 127.0.0.1:9092
ALERTMANAGER ?= 127.0.0.1:9093
JAEGER_API ?= 127.0.0.1:16686
JAEGER_OTLP ?= 127.0.0.1:4318
export EDGE ENVOY_ADMIN SIDECAR_ADMIN UPSTREAM REDIS REDIS_URL CONCURRENCY STACK CONFIG ENVOY TRACE_ENDPOINT
export PROMETHEUS ALERTMANAGER JAEGER_API JAEGER_OTLP
# The edge: envoy, native (Envoy with the filter as a dynamic module), or nginx. For make run, observe, e2e, conformance,
# chaos, routers and loadtest.
EDGE_KIND ?= envoy
export EDGE_KIND
# The seed of random cases, to repeat a run. Empty: a random one, which is printed.
SEED ?=
export SEED
# For make chaos: the duration, and the Redis deployment: single, sentinel, cluster or replica.
CHAOS_SECONDS ?= 60
CHAOS_REDIS ?= single
# CHAOS_AGENT=true puts two more edges on the first edge's sidecar.
CHAOS_AGENT ?= false
export CHAOS_SECONDS CHAOS_REDIS CHAOS_AGENT
# For make lifecycle: the number of streams.
LIFECYCLE_STREAMS ?= 20000
export LIFECYCLE_STREAMS
# For make routers: the number of spellings, the number of a single one to send.
SPELLINGS ?=
ONLY ?=
# For make bypass: the number of configurations of each proxy, another gatehousectl; also ONLY and RUN.
CONFIGS ?=
CHECK ?=
# For make unit and make e2e: LONG=1 selects the long form; RUN: a regular expression that selects end-to-end tests. For
# make fuzz: seconds per target, and a prefix that selects targets.
LONG ?=
RUN ?=
FUZZ_SECONDS ?= 60
FUZZ ?=
# For make fleet: numbers of followers, ascending.
FOLLOWERS ?= 1,10,100,1000
# VERBOSE=1: make install-check shows each command and its result.
VERBOSE ?=
# The filter's binding: own, sdk for the Proxy-Wasm Go SDK, or plugins for rules in the plugins' own configurations. For
# make wasm, and all that runs stacks with the filter.
BINDING ?= own
export BINDING
# For make release and publish: the version, the directory, the registry.
VERSION ?=
OUT ?=
REGISTRY ?=
# Tests run with the race detector, for which everything is compiled once more; make test leaves it to CI.
RACE ?= 1
export RACE
# Otherwise each program with the race detector waits for a second at its end.
export GORACE ?= atexit_sleep_ms=0
# Many packages wait for Redis: two test programs per processor.
parallel := -p $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
short := $(if $(filter-out 0 no false,$(LONG)),,-short)

GO ?= go
# Programs are built as in a release, so that nothing is built anew when a C compiler comes.
build := CGO_ENABLED=0 $(GO) build
race := $(if $(filter-out 0 no false,$(RACE)),-race)
# What make test also leaves to CI: tests that take long on two cores, and the packages of other edges, whose builds do.
unit := $(if $(race),,CGO_ENABLED=0) $(GO) test $(parallel) $(race) -vet=off -timeout=30m $(short) $(if $(race),,-skip '^Test(Outside|KilledSync|KilledImport)$$')
elsewhere := $(if $(race)$(filter nginx,$(EDGE_KIND)),^$$,/gatehouse/nginx$$|/nginxconfig$$)

.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help packages run observe observe-build stop build wasm native nginx floor test test-all unit e2e clients install-check conformance matrix fuzz engines chaos routers bypass mutation lua-coverage observe-check lifecycle loadtest bench-check fleet check docs chart-check chart-readme images release publish chart-e2e mesh-e2e clean

help: ## show this
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do \
	  printf '  make %-12s %s\n' "$$target" "$$text"; done
	@echo
	@echo '  Variables of make run and observe, with their values now:'
	@for v in EDGE_KIND EDGE ENVOY_ADMIN SIDECAR_ADMIN UPSTREAM REDIS REDIS_URL CONCURRENCY STACK CONFIG ENVOY TRACE_ENDPOINT PROMETHEUS ALERTMANAGER JAEGER_API JAEGER_OTLP; do \
	  printf '  %-14s %s\n' "$$v" "$$(printenv "$$v")"; done
	@echo '  REDIS_URL is a Redis of yours, in place of REDIS: the demo writes its devices there.'

# Before anything is built: the system's packages that all targets of this command need, in one transaction.
packages:
	@scripts/install-packages.sh $(MAKECMDGOALS)

run: packages ## start Redis, sidecar, upstream and Envoy with demo data; EDGE_KIND=native or nginx; DETACH=1: in the background
	@GO=$(GO) scripts/build-demo.sh
	@$(if $(filter nginx,$(EDGE_KIND)),,ENVOY=$$(scripts/install-envoy.sh) && export ENVOY &&) exec scripts/demo.sh $(if $(filter-out 0 no false,$(DETACH)),start,run) build/gatehouse-demo

observe: observe-build ## make run with Prometheus, the chart's alerts, Alertmanager, Jaeger and a little load; Linux; the same variables
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec scripts/demo.sh $(if $(filter-out 0 no false,$(DETACH)),start,run) scripts/observe.sh

observe-build: build
	@scripts/install-jaeger.sh >/dev/null
	$(build) -trimpath -o build/gatehouse-loadtest ./loadtest

observe-check: observe-build ## run every query of the dashboard and every alert in what make observe runs, and the fault of each alert: EDGE_KIND
	@GO=$(GO) scripts/chaos-build.sh
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec $(GO) test -C e2e -count=1 -timeout=30m ./observe

stop: ## stop what make run or make observe started
	@scripts/demo.sh stop

build: wasm $(if $(filter native nginx,$(EDGE_KIND)),$(EDGE_KIND)) ## build the filter and the programs into build/; EDGE_KIND=native or nginx: also make native or nginx
	$(build) -trimpath -ldflags "-X github.com/gatehouse/gatehouse/internal/version.checkout=$$(git describe --tags --always --dirty --abbrev=12 2>/dev/null)" \
	  -o build/ ./sidecar/cmd/... ./verify/internal/cmd/... ./ctl/cmd/... ./publisher/cmd/... ./testbed/cmd/...

wasm: packages ## build the filter; BINDING=sdk or plugins, here and with run, e2e, chaos, conformance, loadtest: another build of it
	@case $(BINDING) in own | sdk | plugins) ;; *) echo "BINDING=$(BINDING): want own, sdk or plugins" >&2; exit 2 ;; esac
	@mkdir -p build
	GO=$(GO) scripts/build-wasm.sh $(if $(filter own,$(BINDING)),build/gatehouse.wasm,build/gatehouse-$(BINDING).wasm -tags=$(BINDING))

floor: packages ## build build/libfloor.so, the dynamic module that decides nothing, with which the load test compares Gatehouse
	@mkdir -p build
	cc -O2 -Wall -Wextra -Werror -shared -fPIC -o build/libfloor.so loadtest/floor/floor.c native-filter/dynmod/noop.c

native: packages ## build the filter as a dynamic module of Envoy into build/libgatehouse.so; Linux, gcc
	@mkdir -p build
	GO=$(GO) scripts/build-library.sh native build/libgatehouse.so

nginx: packages ## build the edge in nginx as a library into build/libgatehouse-nginx.so; Linux, gcc
	@mkdir -p build
	GO=$(GO) scripts/build-library.sh nginx build/libgatehouse-nginx.so

test: ## unit tests and end-to-end suite, five minutes; CI runs them with -race, too
	@scripts/test.sh

test-all: ## make test and all long tests: whole suites, mutation, conformance, routers, chaos, fuzzing, images twice
	@scripts/test.sh all

unit: packages ## unit tests with -race, except of packages that need a stack; LONG=1: also long ones
	@$(unit) $$($(GO) list ./... | grep -vE '$(elsewhere)')
	@cd clients/go && GOWORK=off $(unit) ./...
	@cd examples/postgres && $(unit) ./...
	@cd release && $(unit) ./...
	@cd e2e && $(unit) $$($(GO) list ./... | grep -v -e '/e2e$$' -e '/chart$$' -e '/clients$$' -e '/install$$' -e '/conformance$$' -e '/bypass$$' -e '/lifecycle$$' -e '/observe$$')
	@$(if $(race)$(filter native,$(EDGE_KIND)),CGO_ENABLED=1 $(GO) test $(race) -vet=off -tags=native ./native-filter/...)

e2e: build ## end-to-end suite; LONG=1: also long tests; RUN=TestCache; EDGE_KIND=native or nginx
	@$(if $(short),,scripts/install-jaeger.sh && scripts/install-ratelimit.sh && scripts/install-opa.sh && scripts/install-s3.sh && scripts/install-browser.sh && scripts/install-yaml-language-server.sh) >/dev/null
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && scripts/e2e.sh $(short) $(if $(RUN),-run '$(RUN)')

clients: packages ## build the clients for Python, Node.js and Java, install their packages, test them against real servers
	@GO=$(GO) scripts/clients.sh

fuzz: packages ## each fuzz target for a minute: FUZZ_SECONDS=60 FUZZ=FuzzParse
	@scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ)

install-check: packages ## run each command of the documentation that installs, from empty directories against registries on this machine
	@GO=$(GO) scripts/install-check.sh $(if $(filter-out 0 no false,$(VERBOSE)),-v)

conformance: build ## check the whole stack, octet by octet, against the specifications of HTTP: EDGE_KIND
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec $(GO) test -C e2e -race -count=1 -timeout=30m ./conformance

matrix: build ## end-to-end tests with each older Envoy of envoy/versions.txt, 3 minutes; LONG=1: the whole suite, short form
	@scripts/matrix.sh $(if $(short),,all)

engines: build ## tests of what rests on Redis, and 30 s of chaos, with each other server of clients/go/testbed/redistest/versions.txt
	$(build) -C e2e -trimpath -o ../build/ ./cmd/gatehouse-chaos
	@GO=$(GO) scripts/chaos-build.sh
	@scripts/engines.sh

chaos: build ## kill, pause and disconnect everything under load, and check each answer: CHAOS_SECONDS, SEED, CHAOS_REDIS, CHAOS_AGENT=true, EDGE_KIND
	$(build) -C e2e -trimpath -o ../build/ ./cmd/gatehouse-chaos
	@GO=$(GO) scripts/chaos-build.sh
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec build/gatehouse-chaos

lifecycle: build ## end streams in every way while they wait, under faults: LIFECYCLE_STREAMS, SEED, EDGE_KIND, BINDING
	@GO=$(GO) scripts/chaos-build.sh
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec $(GO) test -C e2e -race -count=1 -v -timeout=30m ./lifecycle

routers: build ## send spellings of protected paths to real routers behind the edge: SPELLINGS, SEED, ONLY, EDGE_KIND
	$(build) -C e2e -trimpath -o ../build/ ./cmd/gatehouse-routers
	@scripts/routers.sh $(foreach v,SPELLINGS SEED ONLY,$(if $($v),--$(shell echo $v | tr A-Z a-z)='$($v)'))

bypass: build native nginx ## run generated configurations of Envoy and nginx, try to get past the filter, and compare with gatehousectl check: CONFIGS, SEED, ONLY, CHECK, RUN
	@ENVOY=$$(scripts/install-envoy.sh) && export ENVOY && exec $(GO) test -C e2e -count=1 -timeout=3h -v $(if $(RUN),-run '$(RUN)') ./bypass $(foreach v,CONFIGS ONLY,$(if $($v),-$(shell echo $v | tr A-Z a-z)='$($v)')) $(if $(CHECK),-check='$(abspath $(CHECK))')

mutation: packages ## remove each check of mutants.txt, and fail unless its test fails: MUTANT=follow/
	@$(GO) run ./scripts/mutation $(MUTANT)

lua-coverage: packages ## lines of the NGINX plugin that its tests run; fails under 90 % of a module
	@cd nginx && $(GO) test -race -count=1 -lua-coverage

loadtest: build ## measure on this machine: SCENARIO=304 PEERS=1 SECONDS=10; see loadtest/README.md
	@$(if $(filter-out 0,$(PEERS)),$(MAKE) --no-print-directory wasm BINDING=sdk && $(MAKE) --no-print-directory wasm BINDING=plugins && $(MAKE) --no-print-directory native nginx floor)
	@$(if $(findstring nginx,$(EDGE_KIND) $(SCENARIO)),$(MAKE) --no-print-directory nginx)
	@scripts/loadtest.sh $(if $(SECONDS),--seconds=$(SECONDS)) # bash counts in a variable of this name

bench-check: build native nginx floor ## measure the ratios of loadtest/limits.json, of both modules, and the cost of the access log, 4 minutes; fail beyond the limits
	@WORKERS=$${WORKERS:-1} scripts/loadtest.sh --scenario check,observed --out build/bench-check

fleet: packages ## measure what 1, 10, 100 and 1,000 followers cost Redis, 5 minutes; Linux, two cores: FOLLOWERS=1,100
	@cd sidecar/cmd/gatehouse-sidecar && $(GO) test -count=1 -timeout=10m -v -run '^TestFleet$$' . -fleet=$(FOLLOWERS)

check: packages ## format, lint, module files, links
	@scripts/check.sh

docs: packages ## the documentation as a site in build/docs, to be read without a server too; checks its links
	@scripts/docs.sh

images: packages ## OCI archives of sidecar, Envoy and module into build/images, with bills of materials and digests
	@release/images.sh

release: packages ## make all that a release publishes, reproducibly: VERSION=0.1.0 OUT=build/0.1.0
	@release/release.sh '$(VERSION)' '$(OUT)'

publish: ## push a release to a registry, and sign it: OUT=build/0.1.0 REGISTRY=ghcr.io/gatehouse
	@release/publish.sh '$(OUT)' '$(REGISTRY)'

chart-e2e: ## install, break and upgrade the chart in a real Kubernetes on this machine, or say why it can't run one
	@scripts/chart-e2e.sh chart

mesh-e2e: ## the same under the control planes of Envoy Gateway and Istio, built once in ten minutes
	@scripts/chart-e2e.sh mesh

chart-check: build native nginx ## lint, unit tests and schemas of the Helm chart, and the configurations that it renders
	@scripts/chart-check.sh

chart-readme: ## update the schemas of the rules, the chart's table of values and schema, and its alerts in docs/prometheus
	@go run ./ctl/cmd/gatehousectl schema >nginx/rules.schema.json
	@go run ./ctl/cmd/gatehousectl schema envoy >envoy/envoy.schema.json
	@"$$(scripts/chart-tools.sh)"/readme charts/gatehouse nginx/rules.schema.json
	@scripts/render-alerts.sh >docs/prometheus/alerts.yaml

clean: ## remove build/; .venv stays
	rm -rf build
