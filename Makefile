# Everything runs from a fresh clone with Go, Node, Python 3 and make: a target
# sets up what it needs, once.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

comma := ,
FUNCTIONS := $(notdir $(wildcard functions/*))
# The same bytes from the same code: the hash of a binary names its deploy.
GOBUILD   := CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags lambda.norpc -ldflags '-s -w'
HOST      := GOOS=linux GOARCH=$(shell go env GOHOSTARCH)
# The race detector needs a C compiler.
RACE      := $(shell command -v cc >/dev/null 2>&1 && echo -race)
FUZZTIME  ?= 20s

# What runs in place of the original, where the directory is there.
export SANDKEEPER_VECTORS ?= $(abspath ../shared/vectors)

export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION := 20
export AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED := true
export CDK_DISABLE_VERSION_CHECK := 1
export CDK_DISABLE_CLI_TELEMETRY := true

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.ready node_modules/.ready examples/host-node/node_modules/.ready examples/host-python/.venv/.ready ## Install the pinned local engine, CDK CLI and what the examples need, into this directory
	@:

.venv/.ready: requirements.txt
examples/host-python/.venv/.ready: examples/host-python/requirements.txt
.venv/.ready examples/host-python/.venv/.ready:
	@echo "installing what $< lists into $(@D)" >&2
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.PHONY: setup-sam
setup-sam: .local/sam/.ready ## Install the pinned SAM, into this directory
	@:

.local/sam/.ready: requirements-sam.txt
	@python3 -m venv --clear .local/sam
	@.local/sam/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

node_modules/.ready: package.json package-lock.json .npmrc
examples/host-node/node_modules/.ready: $(addprefix examples/host-node/,package.json package-lock.json .npmrc)
node_modules/.ready examples/host-node/node_modules/.ready:
	@echo "installing what $(word 2,$^) lists into $(@D)" >&2
	@cd $(dir $(@D)) && npm ci --silent
	@touch $@

.PHONY: types
types: setup ## Write the examples' types anew from docs/session-api.md
	@cd examples/host-node && node generate.mjs
	@cd examples/host-python && .venv/bin/python generate.py

.local/lint/.ready: requirements-lint.txt
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# build writes to a stage and copies what changed, so that what depends on a
# binary is only made again when its bytes differ.
define stage
	@test -n "$(FUNCTIONS)" || { echo "no functions/ to build"; exit 1; }
	@echo "building functions and agent for $(2); the first time takes minutes" >&2
	@mkdir -p dist/.stage/$(2)
	@$(1) $(GOBUILD) -o dist/.stage/$(2)/ $(addprefix ./functions/,$(FUNCTIONS))
	@for f in $(FUNCTIONS); do \
		mkdir -p $(3)/$$f; \
		cmp -s dist/.stage/$(2)/$$f $(3)/$$f/bootstrap || cp dist/.stage/$(2)/$$f $(3)/$$f/bootstrap; \
	done
endef

# The agent is one static file, for whatever image a sandbox has.
define agent
	@$(1) $(GOBUILD) -o $(2)/ ./cmd/sandkeeper-agent
endef

.PHONY: build
build: ## Build functions for Lambda (arm64) and the sandboxes' agent for both machines, to dist
	$(call stage,GOOS=linux GOARCH=arm64,arm64,dist)
	$(call agent,GOOS=linux GOARCH=arm64,dist/agent/arm64)
	$(call agent,GOOS=linux GOARCH=amd64,dist/agent/amd64)

.PHONY: build-local
build-local: ## Build functions and agent for this machine, to dist/local
	$(call stage,$(HOST),local,dist/local)
	$(call agent,$(HOST),dist/local/agent)
	@mkdir -p dist/local/example-tool
	@$(HOST) $(GOBUILD) -o dist/local/example-tool/bootstrap ./examples/tool-go

dist/%/bootstrap: build ;@:
dist/local/%/bootstrap: build-local ;@:

# The operator's tool is one static file for each machine that operators have. Its version
# is the commit, where there is one.
CLI := linux-arm64 linux-amd64 darwin-arm64 darwin-amd64

.PHONY: cli cli-here $(CLI:%=cli-%)
cli: cli-here $(CLI:%=cli-%) ## Build the operator's tool for linux and darwin, to dist/cli

cli-here: cli-$(shell go env GOHOSTOS)-$(shell go env GOHOSTARCH) ## Build the operator's tool for this machine, to dist/sandkeeper
	@cp dist/cli/$(patsubst cli-%,%,$<)/sandkeeper dist/sandkeeper

$(CLI:%=cli-%): cli-%:
	@echo "building the operator's tool for $*; the first time takes minutes" >&2
	@mkdir -p dist/cli/$*
	@GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o dist/cli/$*/sandkeeper ./cmd/sandkeeper

STACK := Makefile $(wildcard infra/*.go infra/sandkeeper/*.go) infra/go.mod infra/go.sum $(wildcard internal/names/*.go) internal/core/limits.go internal/core/limits_read.go internal/core/journal_main.go internal/core/places.go $(wildcard internal/metrics/*.go)

# CONTEXT is a file of choices, docs/deploy.md; choices.json beside this Makefile needs no
# saying, so that it is not forgotten at an upgrade.
CONTEXT ?= $(wildcard choices.json)
CHOICES := $(if $(CONTEXT),$(if $(wildcard $(CONTEXT)),$(abspath $(CONTEXT)),$(error CONTEXT=$(CONTEXT): no such file)))
CHOSEN  := SANDKEEPER_CHOICES='$(CHOICES)'

# choices.used changes with the file and with its name: what was made with other choices is
# made again.
cdk.out/choices.used: .FORCE
	@test -n '$(CHOICES)' || echo "no choices.json and no CONTEXT=FILE: every choice has its default" >&2
	@mkdir -p $(@D)
	@{ echo '$(CHOICES)'; test -z '$(CHOICES)' || cat '$(CHOICES)'; } >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

.PHONY: .FORCE
.FORCE: ;@:

cdk.out/aws/manifest.json: cdk.out/choices.used $(STACK) $(FUNCTIONS:%=dist/%/bootstrap)
	@rm -rf $(@D)
	@cd infra && $(CHOSEN) CDK_CONTEXT_JSON='{}' CDK_OUTDIR=../$(@D) go run .

cdk.out/local/manifest.json: $(STACK) $(FUNCTIONS:%=dist/local/%/bootstrap)
	@rm -rf $(@D)
	@cd infra && SANDKEEPER_CHOICES= CDK_CONTEXT_JSON='{"local":true}' CDK_OUTDIR=../$(@D) go run .

# An installation with a spoke, and that spoke: for the test that goes there.
SPOKE_CONTEXT := "externalId":"of-the-local-spoke","clusters":["agents"]

cdk.out/spokes/manifest.json: $(STACK) $(FUNCTIONS:%=dist/local/%/bootstrap)
	@rm -rf $(@D) $(@D)-there
	@cd infra && SANDKEEPER_CHOICES= CDK_CONTEXT_JSON='{"spoke":{"hub":"arn:aws:ecs:us-east-1:000000000000:cluster/sandkeeper",$(SPOKE_CONTEXT)}}' CDK_OUTDIR=../$(@D)-there go run .
	@cd infra && SANDKEEPER_CHOICES= CDK_CONTEXT_JSON='{"local":true,"spokes":[{"role":"arn:aws:iam::111122223333:role/sandkeeper-spoke-eu-west-1","region":"eu-west-1",$(SPOKE_CONTEXT)}]}' CDK_OUTDIR=../$(@D) go run .

# A second installation in the cluster of the first: for the test that runs both. The name
# of the one begins with the other's.
cdk.out/beside/manifest.json: $(STACK) $(FUNCTIONS:%=dist/local/%/bootstrap)
	@rm -rf $(@D)
	@cd infra && SANDKEEPER_CHOICES= CDK_CONTEXT_JSON='{"local":true,"install":"sandkeeper-beside","cluster":"sandkeeper","leaks":"stop"}' CDK_OUTDIR=../$(@D) go run .

.PHONY: synth
synth: cdk.out/aws/manifest.json ## Synthesize the stack with the choices of CONTEXT (choices.json), to cdk.out/aws

.PHONY: synth-local
synth-local: cdk.out/local/manifest.json ## Synthesize the stack's local variant, to cdk.out/local

# A bundle is a plain template and the zips that it takes from a bucket.
define bundle
	@rm -rf $(1) $(2)
	@cd infra && $(4) CDK_CONTEXT_JSON='$(3)' CDK_OUTDIR=../$(2) go run .
	@cp $(2)/*.template.json $(1)/
endef

.PHONY: bundle
bundle: cdk.out/bundle/manifest.json ## Make a plain CloudFormation template, with the choices of CONTEXT, and zips, to dist/bundle
	@ls dist/bundle/*

cdk.out/bundle/manifest.json: cdk.out/choices.used $(STACK) $(FUNCTIONS:%=dist/%/bootstrap)
	$(call bundle,dist/bundle,$(@D),{"bundle":"../dist/bundle"},$(CHOSEN))

dist/bundle-local/sandkeeper.template.json: $(STACK) $(FUNCTIONS:%=dist/local/%/bootstrap)
	$(call bundle,$(@D),cdk.out/bundle-local,{"local":true$(comma)"bundle":"../$(@D)"},SANDKEEPER_CHOICES=)

.PHONY: spoke
spoke: ## Make the plain template of a spoke, from the choices of SPOKE=FILE, to dist/spoke
	@test -f '$(SPOKE)' || { echo "SPOKE=FILE: want a file of a spoke's choices, docs/deploy.md"; exit 1; }
	@rm -rf cdk.out/spoke dist/spoke && mkdir -p dist/spoke
	@cd infra && SANDKEEPER_CHOICES= SANDKEEPER_SPOKE='$(abspath $(SPOKE))' CDK_CONTEXT_JSON='{}' CDK_OUTDIR=../cdk.out/spoke go run .
	@cp cdk.out/spoke/*.template.json dist/spoke/ && ls dist/spoke/*

# What is looked at beside the stack as it is chosen: a stack of every other kind, and the
# bundle.
VARIANTS := $(patsubst infra/variants/%.json,cdk.out/variants/%/manifest.json,$(wildcard infra/variants/*.json))

cdk.out/variants/%/manifest.json: infra/variants/%.json $(STACK) $(FUNCTIONS:%=dist/%/bootstrap)
	@rm -rf $(@D)
	@cd infra && SANDKEEPER_CHOICES='$(abspath $<)' CDK_CONTEXT_JSON='{}' CDK_OUTDIR=../$(@D) go run . 2>$(abspath cdk.out)/variant.log || { cat $(abspath cdk.out)/variant.log; exit 1; }

.PHONY: lint
lint: .local/lint/.ready synth bundle $(VARIANTS) ## Check templates, variants and bundle with cfn-lint and cdk-nag, offline
	@.local/lint/bin/cfn-lint cdk.out/aws/*.template.json cdk.out/variants/*/*.template.json dist/bundle/*.template.json
	@cd infra && go test -run '^TestAwsSolutionsFindsNothing$$' ./sandkeeper

.PHONY: check
check: ## Format, vet, fix, staticcheck, tidy: both modules, cheapest first; then lint
	@unformatted=$$(gofmt -l $(wildcard *.go cmd examples functions internal infra scripts)); \
		test -z "$$unformatted" || { echo "not formatted:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	cd infra && go vet ./...
	cd examples/cdk-app && go vet ./...
	go fix -diff ./...
	cd infra && go fix -diff ./...
	go mod tidy -diff
	cd infra && go mod tidy -diff
	cd examples/cdk-app && go mod tidy -diff
	go tool -modfile=tools.mod staticcheck ./...
	cd infra && go tool -modfile=../tools.mod staticcheck ./...
	@$(MAKE) --no-print-directory lint

.PHONY: test
test: setup synth-local cdk.out/spokes/manifest.json cdk.out/beside/manifest.json dist/bundle-local/sandkeeper.template.json ## Run every test, against the local engine where one is needed
	go test $(RACE) -shuffle=on -timeout 20m ./...
	go test -count=1 -timeout 20m -run "^TestExploration$$" -v ./internal/core
	@$(MAKE) --no-print-directory test-upgrade
	cd infra && go test -shuffle=on -timeout 10m ./...
	cd examples/cdk-app && go test -timeout 10m ./...

.PHONY: test-upgrade
test-upgrade: ## Have the code of the commit before (FROM) write rows, and read them; make test does so too
	@go run ./scripts/upgrade -from '$(or $(FROM),HEAD~1)'

.PHONY: test-iam
test-iam: setup synth-local ## Try every call of every role on an engine that enforces IAM; make test does so too
	go test -count=1 -timeout 10m -run '^TestIAM$$' -v ./internal/engine ./internal/engine/policy

.PHONY: soak
soak: ## Simulate STEPS steps (a million) that nobody has seen, one port call at a time
	@SOAK_STEPS=$(or $(STEPS),1000000) go test -count=1 -timeout 0 -run '^TestSoak$$' -v ./internal/sim

.PHONY: mutations
mutations: ## Break the code on purpose, one place at a time: the simulation must notice each
	@go run ./scripts/mutations

.PHONY: fuzz
fuzz: ## Run every fuzzer for FUZZTIME (20s)
	@FUZZTIME=$(FUZZTIME) sh scripts/fuzz.sh

.PHONY: bench
bench: setup build synth-local ## Measure what is promised in figures, or those parts that match ONLY, to bench.json
	@cd internal/bench && go test -count=1 -timeout 25m -run '^TestFigures$$' -figures ../../bench.json -only '$(ONLY)'

.PHONY: deploy-local
deploy-local: setup synth-local ## Deploy to an engine that runs at ENDPOINT (LocalStack, MiniStack), ECS at ECS_ENDPOINT
	@go run ./scripts/deploylocal -endpoint '$(or $(ENDPOINT),http://127.0.0.1:4566)' -ecs-endpoint '$(ECS_ENDPOINT)'

.PHONY: sam-invoke
sam-invoke: setup setup-sam synth-local ## Run one function (FN=reap) with an event (EVENT=events/reap-tick.json) in Lambda's runtime, by SAM and Docker
	@go run ./scripts/sam -image '$(IMAGE)' invoke '$(FN)' '$(EVENT)'

.PHONY: sam-start
sam-start: setup setup-sam synth-local ## Serve every function in Lambda's runtime until interrupted
	@go run ./scripts/sam -image '$(IMAGE)' start

# What needs a Docker engine. With CI set a missing one fails.
.PHONY: test-docker
test-docker: setup setup-sam synth-local ## Test local Fargate on containers, and every function and event by SAM
	SANDKEEPER_TEST_DRIVER=docker go test -count=1 -timeout 10m ./internal/localfargate
	SANDKEEPER_TEST_DRIVER=docker go test -count=1 -timeout 15m ./internal/engine/samlocal

.PHONY: localstack-test
localstack-test: setup synth-local ## Test what answers at ENDPOINT (LocalStack, MiniStack): deploy and end-to-end tests, or what it can
	@go run ./scripts/localstack -endpoint '$(or $(ENDPOINT),http://127.0.0.1:4566)' -run '$(RUN)'

.PHONY: demo
demo: setup synth-local ## Run the main job on real processes, deployed to the local engine
	@go run ./cmd/sandkeeper demo

.PHONY: clean
clean: ## Remove what was built; setup stays
	rm -rf dist cdk.out
