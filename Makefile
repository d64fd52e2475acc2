# One virtual environment in two layers. The first has the packages for serving, from the lock with
# hashes. install-dev adds the tools for export, tests and benchmarks. Serving alone never installs
# torch or transformers.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
# cpu or gpu. By default, what .venv already has.
HARDWARE ?= $(if $(wildcard .venv/.locked-gpu),gpu,cpu)
UV ?= $(CURDIR)/.venv/bin/uv
# Of Ray Data's part of cluster-check.
ROWS ?= 32000
LOCK_FLAGS ?=

# It shows each package and its download, because an installation takes from seconds to minutes.
PIP := .venv/bin/python -m pip --disable-pip-version-check install
GPU_PIP := .gpu-check/bin/python -m pip --disable-pip-version-check install
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--annotation-style line --custom-compile-command 'make lock' $(LOCK_FLAGS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: .venv/.installed ## Create .venv with the service and its command (HARDWARE=cpu|gpu)

.PHONY: serve
serve: install ## Serve the embedded model (HOST=, PORT=)
	@exec .venv/bin/sentiment serve --host '$(HOST)' --port '$(PORT)'

.PHONY: install-dev
install-dev: .venv/.installed .venv/.installed-dev ## Add the tools for export, tests, checks and benchmarks to .venv

.PHONY: test
test: test-tools install-dev ## Run the whole test suite; as root, install the system packages it needs first
	.venv/bin/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder -m 'not beside'

# Chromium for the page, nginx before two replicas, Prometheus for the metrics, QEMU for other CPUs,
# curl as documentation uses it.
.PHONY: test-tools
test-tools:
	@tests/install-tools.sh chromium:chromium nginx:nginx-light prometheus:prometheus qemu-x86_64:qemu-user curl:curl

.PHONY: check
check: install-dev ## Check formatting, lint, types and import rules
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

# The tests that need neither a server nor PyTorch, by folder and file, and what is slow among them.
UNIT_TESTS := tests/engine tests/settings tests/replay tests/observability/test_series.py \
	tests/api/request/test_body_parsing.py tests/api/openapi/test_openapi_document.py \
	tests/files/test_tables.py tests/project/test_links.py
NO_UNIT_TESTS := tests/engine/model/test_every_cpu.py tests/engine/model/test_batch_invariance.py \
	tests/engine/text/test_pairs.py
UNIT_TEST := .venv/bin/python -m pytest --quiet --numprocesses 2 --dist loadfile \
	$(addprefix --ignore=,$(NO_UNIT_TESTS)) $(UNIT_TESTS)

.PHONY: quick
quick: check ## Do what check does, then run the tests that need neither a server nor PyTorch: under a minute
	$(UNIT_TEST)

.PHONY: coverage
coverage: install-dev ## Show which lines of the engine the tests of quick do not run
	$(UNIT_TEST) --cov=sentiment_service.engine --cov-report=term-missing:skip-covered

.PHONY: deploy-check
deploy-check: install-dev ## Lint the Dockerfile and the Helm chart, check Compose and Kubernetes files against their schemas
	.venv/bin/python -m checks.deploy.check

# The embedded model first; then PyTorch, ONNX Runtime and the tests themselves run in QEMU; ALBERT's
# layers share their matrices. The suite compares the recorded answers with such a CPU in less time.
.PHONY: emulated-check
emulated-check: test-tools install-dev ## Test int8 graphs and their export on an emulated x86 CPU with AVX2 alone
	.venv/bin/python -m pytest --numprocesses 2 -m beside tests/engine/model/test_every_cpu.py
	qemu-x86_64 -cpu Haswell .venv/bin/python -m pytest -p no:xdist --timeout 0 -o faulthandler_timeout=0 \
		tests/model_export/graph/test_int8.py \
		tests/model_export/quality/test_verification.py \
		tests/model_export/test_export.py::test_others_load_the_bundle \
		tests/model_export/test_export.py::test_others_load_the_embedded_bundle \
		'tests/model_export/graph/test_graphs_of_architectures.py::test_logits_are_those_of_pytorch[albert-int8]'

# On a machine that cannot run containers, one line says why; with REQUIRED=1, that is a failure.
.PHONY: container-check
container-check: install-dev container-tools ## Build the images and run them as their users do, with Docker or Podman
	.venv/bin/python -m checks.containers $(if $(REQUIRED),--required)

# Podman for machines without Docker, and what makes a base image where no registry can be reached.
.PHONY: container-tools
container-tools:
	@docker info >/dev/null 2>&1 || tests/install-tools.sh podman:podman runc:runc catatonit:catatonit \
		/usr/lib/podman/netavark:netavark /usr/lib/podman/aardvark-dns:aardvark-dns \
		iptables:iptables mmdebstrap:mmdebstrap || true

# On a machine that cannot make such systems, one line says why.
.PHONY: python-check
python-check: install-dev python-tools ## Run the tests on Debian's Python 3.13 and 3.14, in systems of 7 GB each made by mmdebstrap
	.venv/bin/python -m checks.pythons

.PHONY: python-tools
python-tools:
	@tests/install-tools.sh mmdebstrap:mmdebstrap || true

.PHONY: platform-check
platform-check: install-dev platform-tools ## Call the service with the clients of hosting platforms, and with generated ones
	.venv/bin/python -m checks.platforms.check

# For the generated clients. Those for Go import a package that Go loads where Debian's is missing.
.PHONY: platform-tools
platform-tools:
	@tests/install-tools.sh java:default-jre-headless npm:npm go:golang-go \
		/usr/share/gocode/src/gopkg.in/validator.v2:golang-gopkg-validator.v2-dev

.PHONY: guest-check
guest-check: install-dev ## Resolve the wheel beside the newest libraries of users; classify beside two of them and in a notebook
	.venv/bin/python -m checks.guests

# With the newest version of everything but PyTorch, which only the exporter's tests need.
.PHONY: newest-check
newest-check: install-dev ## Run the unit tests with the newest versions of all packages
	$(UV) venv --quiet --clear --python .venv/bin/python .venv/newest
	$(UV) pip install --quiet --python .venv/newest/bin/python --upgrade --editable '.[cpu,files,otel,grpc,export,dev]'
	$(subst .venv/bin/python,.venv/newest/bin/python,$(UNIT_TEST))

.PHONY: cluster-check
cluster-check: install-dev ## Classify with Ray Data and Spark while processes are killed, and run the example of Ray Serve (ROWS=)
	.venv/bin/python checks/cluster/check_ray_data.py --rows '$(ROWS)'
	.venv/bin/python checks/cluster/check_spark.py
	.venv/bin/python checks/cluster/check_ray_serve.py

.PHONY: format
format: install-dev ## Format the code and apply the fixes of the linter
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

.PHONY: bench
bench: install-dev ## Measure the service, plain ONNX Runtime, other servers and int8 (takes an hour)
	.venv/bin/python -m benchmarks --peers

# Transformers 4 and its Optimum are installed beside what the suite has, which is transformers 5.
.PHONY: parity-check
parity-check: install-dev ## Compare exports of every architecture with the logits of transformers 5 and 4, and load them with Optimum
	.venv/bin/python -m checks.parity

# It needs gcc and nm on x86-64. The packages (350 MB) are kept in the user's cache.
.PHONY: cuda-check
cuda-check: install-dev ## Open the graphs for GPUs with ONNX Runtime's CUDA provider, without a GPU
	.venv/bin/python -m checks.cuda
	.venv/bin/python -m pytest --quiet -m beside tests/checks/test_gpu_pack.py

# The exporter and the GPU's runtime have an environment each, because PyTorch brings CUDA libraries
# of other versions. For a machine without a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=DIRECTORY.
.PHONY: gpu-check
gpu-check: install-dev .gpu-check/.installed ## Check and measure the service on an NVIDIA GPU, in nine minutes at a time; without one, say what is missing
	.venv/bin/python -m checks.gpu --python .gpu-check/bin/python

.gpu-check/.installed: requirements/gpu.txt requirements/build.txt pyproject.toml
	@echo "Creating .gpu-check with the packages for GPUs. This is done once and takes 3 GB."
	@$(PYTHON) -m venv --clear .gpu-check
	@$(GPU_PIP) --require-hashes -r requirements/gpu.txt -r requirements/build.txt
	@$(GPU_PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: soak
soak: install-dev ## Run traffic with faults for half an hour; check all answers and the memory
	.venv/bin/python -m checks.soak

# The dev lock is made first, because transformers limits the versions of packages that both locks
# share. It leaves out the runtime, which the serving lock decides. It also leaves out the GPU packages
# of torch, which differ between builds of torch; torch pins them itself.
.PHONY: lock
lock: ## Update requirements/*.txt with the uv of install-dev, or UV= (LOCK_FLAGS=--upgrade for the newest versions)
	$(LOCK) --extra cpu --extra files --extra otel --extra grpc --extra export --extra torch --extra dev --extra pictures pyproject.toml -o requirements/dev.txt
	sed -i.old -E '/^(onnxruntime|torch-|nvidia-|cuda-|triton=)/d; s/^(torch==[0-9.]+)\+[a-z0-9]+/\1/' requirements/dev.txt
	rm requirements/dev.txt.old
	$(LOCK) --generate-hashes --extra cpu -c requirements/dev.txt pyproject.toml -o requirements/cpu.txt
	$(LOCK) --generate-hashes --extra gpu -c requirements/dev.txt pyproject.toml -o requirements/gpu.txt
	printf 'httpx\nopenpyxl\npyarrow\ntqdm\n' | $(LOCK) --generate-hashes -c requirements/dev.txt - -o requirements/files.txt
	printf 'grpcio\nprotobuf\nopentelemetry-sdk\nopentelemetry-exporter-otlp-proto-http\nhuggingface-hub\nonnx\nsentencepiece\n' | $(LOCK) --generate-hashes -c requirements/dev.txt - -o requirements/images.txt
	printf 'hatchling\neditables\n' | $(LOCK) --generate-hashes -c requirements/dev.txt - -o requirements/build.txt
	printf 'cyclonedx-bom\n' | $(LOCK) --generate-hashes -c requirements/dev.txt - -o requirements/sbom.txt
	for name in checks/containers/requirements/*.in checks/platforms/requirements/*.in; do $(LOCK) "$$name" -o "$${name%.in}.txt" || exit; done
	for name in checks/cluster/requirements/*.in; do \
		$(LOCK) -c requirements/cpu.txt -c requirements/files.txt "$$name" -o "$${name%.in}.txt" || exit; \
	done

.PHONY: wheel
wheel: install ## Build the wheel in dist/
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# cyclonedx has an environment of its own, because its packages are in no other lock. It reads the
# licences of an environment that has what an image has.
.PHONY: sbom
sbom: install ## Write the list of the packages for serving (CycloneDX) to dist/
	$(PYTHON) -m venv --without-pip --clear .venv/served
	$(PIP:install=) --python .venv/served/bin/python install --quiet --require-hashes \
		-r requirements/$(HARDWARE).txt -r requirements/images.txt
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/sbom.txt
	mkdir -p dist
	.venv/sbom/bin/cyclonedx-py environment .venv/served/bin/python \
		--pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file dist/sentiment-service-$(HARDWARE).cdx.json

.PHONY: protos
protos: ## Write app/sentiment_service/adapters/grpc/descriptors.binpb from protos/*.proto, with uv
	cd app/sentiment_service/adapters/grpc/protos && $(UV) run --no-project --with grpcio-tools==1.85.1 \
		python -m grpc_tools.protoc -I. --descriptor_set_out=../descriptors.binpb *.proto

.PHONY: clean
clean: ## Remove .venv, caches and builds
	rm -rf .venv .gpu-check dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp files are inside .venv, so they are removed with it. After a change of the lock, .venv is
# created again: no old package stays, and the two runtimes, which share one module, are never
# installed together.
.venv/.locked-$(HARDWARE): requirements/$(HARDWARE).txt requirements/files.txt requirements/build.txt
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "$(PYTHON) is not Python 3.11 or newer with venv; choose another: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@echo "Creating .venv for $(HARDWARE). This is done once and takes up to a minute."
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) --require-hashes -r requirements/$(HARDWARE).txt -r requirements/files.txt -r requirements/build.txt
	@touch $@

.venv/.installed: .venv/.locked-$(HARDWARE) pyproject.toml
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# On Linux, pip would choose PyTorch for CUDA, which is ten times as large as the one for CPUs. uv
# knows the index of the latter; where that cannot be reached, pip takes what its indexes have.
.venv/.installed-dev: .venv/.locked-$(HARDWARE) requirements/dev.txt | .venv/.installed
	@echo "Adding the tools for export, tests and benchmarks. This is done once; PyTorch is a large download, so it takes minutes."
	@$(PIP) --quiet --constraint requirements/dev.txt uv
	@UV_HTTP_RETRIES=1 .venv/bin/uv pip install --python .venv/bin/python --torch-backend cpu --no-deps \
		--constraint requirements/dev.txt torch || \
		printf '%s\n' "The index of PyTorch for CPUs cannot be used; pip takes PyTorch from its own index." \
		"On Linux on x86-64, that of PyPI is for CUDA: torch 2.13.0 and its CUDA packages are a download of 2.7 GB." \
		"To avoid it, stop now, put a wheel for CPUs into a directory, and run: make install-dev PIP_FIND_LINKS=DIRECTORY"
	@$(PIP) -r requirements/dev.txt
	@touch $@
