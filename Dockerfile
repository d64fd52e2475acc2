# docker build .                   the service on CPUs, with the embedded model (the default, `cpu`)
# docker build --target gpu .      the service on CUDA; the host needs only NVIDIA's driver
# docker build --target export .   sentiment-export, which writes bundles to /models
#
# The tag of the base image is a point release, but a tag can be moved. For a reproducible build,
# give a digest that you trust: --build-arg BASE_IMAGE=debian:12.15-slim@sha256:…
ARG BASE_IMAGE=debian:12.15-slim


FROM ${BASE_IMAGE} AS python
# No version is given, because Debian keeps only the newest build of a package. Bytecode is compiled
# without file times, which builds with --timestamp change.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates python3.11 && \
    python3.11 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3.11 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig \
        /var/log/apt /var/log/*.log


# /opt/sentiment is the environment of the image, without pip; /opt/build has the tools to fill it.
FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends binutils python3.11-venv && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3.11 -m venv /opt/build && \
    /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt && \
    python3.11 -m venv --without-pip /opt/sentiment
# Packages are compiled here, because the root is read-only later.
ENV COMPILE="python3.11 -m compileall -q --invalidation-mode unchecked-hash /opt/sentiment" \
    PIP="/opt/build/bin/pip --python /opt/sentiment/bin/python install --no-cache-dir --no-compile"


# Packages and code have separate layers, because the packages change seldom and the code often.
FROM build AS cpu-packages
COPY requirements/cpu.txt requirements/images.txt requirements/
# Symbols for debuggers are 44 MB, the packages' own tests 25 MB, tools for other work 6 MB, and hf_xet,
# without which the hub's client downloads over HTTP, 11 MB. The libraries in *.libs do not load after
# strip: auditwheel has moved their parts.
RUN $PIP --require-hashes --requirement requirements/cpu.txt --requirement requirements/images.txt && \
    find /opt/sentiment -name '*.so' -not -path '*.libs/*' -exec strip --strip-debug {} + && \
    find /opt/sentiment -type d \( -name tests -o -path '*/onnx/backend/test' -o -path '*/onnxruntime/transformers' \
        -o -path '*/numpy/f2py' -o -name 'hf_xet*' \) -prune -exec rm -r {} + && \
    $COMPILE


FROM build AS gpu-packages
COPY requirements/gpu.txt requirements/images.txt requirements/
RUN $PIP --require-hashes --requirement requirements/gpu.txt --requirement requirements/images.txt && \
    $COMPILE


FROM build AS code
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY model_export model_export
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /opt/wheel . && \
    $PIP --no-deps --no-index /opt/wheel/*.whl && \
    $COMPILE


# Installs only the packages that export needs, in the versions of the development lock.
FROM cpu-packages AS export-packages
COPY requirements/dev.txt requirements/
COPY --from=code /opt/wheel /opt/wheel
# PyTorch for CUDA needs 4 GB more. PyTorch for CPUs has a separate index.
ARG TORCH_INDEX_URL=
# pip compiles here, because it skips a file of PyTorch that needs a newer Python; with this variable,
# bytecode has hashes instead of file times.
RUN SOURCE_DATE_EPOCH=1 $PIP --compile --constraint requirements/dev.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
        "$(echo /opt/wheel/*.whl)[cpu,export,torch]"


FROM python AS runtime
ARG VERSION=0.2.0
# The commit, the address of the repository, and a time (RFC 3339), which only the builder knows.
ARG REVISION=
ARG SOURCE=
ARG CREATED=
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="sentiment-service" \
      org.opencontainers.image.description="Sentiment of short texts over HTTP, with a model inside" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$BASE_IMAGE" \
      com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true"
# Mount your own bundles here. A new volume gets the owner of this directory.
RUN install --directory --owner=10001 --group=10001 /models
# A number, so that Kubernetes can check that it is not root. There is no home directory, so caches go
# to /tmp.
USER 10001:10001
WORKDIR /models
ENV PATH=/opt/sentiment/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    SENTIMENT_HOST=0.0.0.0
# The default port. SENTIMENT_PORT is not set here, because it would win over the variables with which
# platforms choose the port.
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-P", "-m", "sentiment_service.cli.health_check"]
ENTRYPOINT ["sentiment"]
CMD ["serve"]


FROM runtime AS export
COPY --from=export-packages /opt/sentiment /opt/sentiment
# Downloads are kept beside the bundles: /tmp may be in memory.
ENV HF_HOME=/models/.cache
HEALTHCHECK NONE
ENTRYPOINT ["sentiment-export"]
CMD ["--help"]


FROM runtime AS gpu
# What NVIDIA's container runtime must provide.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=gpu-packages /opt/sentiment /opt/sentiment
COPY --from=code /opt/sentiment /opt/sentiment


FROM runtime AS cpu
# Otherwise, the hub's client advises to install hf_xet.
ENV HF_HUB_DISABLE_XET=1
COPY --from=cpu-packages /opt/sentiment /opt/sentiment
COPY --from=code /opt/sentiment /opt/sentiment
