# docker build .                   the service on CPUs, with the embedded model (the default, `cpu`)
# docker build --target gpu .      the service on CUDA; it needs nothing but the host's driver
# docker build --target export .   sentiment-export, which fills /models
#
# The tag is a point release, but a tag can be moved. For a build that can be repeated, pin the
# digest you trust: --build-arg BASE_IMAGE=debian:12.15-slim@sha256:…
ARG BASE_IMAGE=debian:12.15-slim


FROM ${BASE_IMAGE} AS python
# Debian keeps the newest build of a package only, so a version named here would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3.11 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/*.log


# /opt/sentiment becomes the environment, without pip; /opt/build holds what fills it.
FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3.11-venv && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3.11 -m venv /opt/build && \
    /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt && \
    python3.11 -m venv --without-pip /opt/sentiment
# Compiled here, because the root is read-only later; unchecked, because layers may change times.
ENV COMPILE="python3.11 -m compileall -q --invalidation-mode unchecked-hash /opt/sentiment" \
    PIP="/opt/build/bin/pip --python /opt/sentiment/bin/python install --no-cache-dir --no-compile"


# The packages change seldom and the code often: each has a layer of its own.
FROM build AS cpu-packages
COPY requirements/cpu.txt requirements/
RUN $PIP --require-hashes --requirement requirements/cpu.txt && \
    $COMPILE


FROM build AS gpu-packages
COPY requirements/gpu.txt requirements/
RUN $PIP --require-hashes --requirement requirements/gpu.txt && \
    $COMPILE


FROM build AS code
COPY pyproject.toml README.md LICENSE sentiment_client.py ./
COPY app app
COPY model_export model_export
COPY models models
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /opt/wheel . && \
    $PIP --no-deps --no-index /opt/wheel/*.whl && \
    $COMPILE


# The versions are those of the development lock, the packages only what export asks for.
FROM cpu-packages AS export-packages
COPY requirements/dev.txt requirements/
COPY --from=code /opt/wheel /opt/wheel
# PyTorch for CUDA brings 4 GB more; the one for CPUs lies in an index of its own.
ARG TORCH_INDEX_URL=
# pip compiles, because it passes over the file that PyTorch has for a newer Python.
RUN $PIP --compile --constraint requirements/dev.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
        "$(echo /opt/wheel/*.whl)[cpu,export]"


FROM python AS runtime
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="sentiment-service" \
      org.opencontainers.image.description="Sentiment of short texts over HTTP, with a model inside" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
# One's own bundles are mounted here. A new volume takes over the owner.
RUN install --directory --owner=10001 --group=10001 /models
# A number, so that Kubernetes can see that it is not root. No home: caches, if any, go to /tmp.
USER 10001:10001
WORKDIR /models
ENV PATH=/opt/sentiment/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    SENTIMENT_HOST=0.0.0.0 \
    SENTIMENT_PORT=8000
EXPOSE 8000
STOPSIGNAL SIGTERM
# http.client, because urllib would ask a proxy of the environment.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-ISc", "\
import http.client, os, sys;\
service = http.client.HTTPConnection('127.0.0.1', int(os.environ['SENTIMENT_PORT']), timeout=4);\
service.request('GET', '/health/ready');\
sys.exit(service.getresponse().status != 200)"]
ENTRYPOINT ["sentiment"]
CMD ["serve"]


FROM runtime AS export
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates && \
    rm -rf /var/lib/apt/lists/*
COPY --from=export-packages /opt/sentiment /opt/sentiment
USER 10001:10001
# Beside the bundles: a download goes on where it stopped, and /tmp may be memory.
ENV HF_HOME=/models/.cache
HEALTHCHECK NONE
ENTRYPOINT ["sentiment-export"]
CMD ["--help"]


FROM runtime AS gpu
# What NVIDIA's container runtime is to bring in.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=gpu-packages /opt/sentiment /opt/sentiment
COPY --from=code /opt/sentiment /opt/sentiment


FROM runtime AS cpu
COPY --from=cpu-packages /opt/sentiment /opt/sentiment
COPY --from=code /opt/sentiment /opt/sentiment
