# The gateway's image: locked and hashed dependencies, the package built from this source, no pip, no shell in the path
# of a signal, any UID, nothing written outside what the pod mounts.
#
# A tag moves. For bases that stay what you scanned, pass their digests:
#   docker build --build-arg BASE=python:3.11-slim@sha256:… --build-arg BUILD_BASE=python:3.11@sha256:… .
ARG BASE=python:3.11-slim
# The same Python on the same Debian, and a C compiler.
ARG BUILD_BASE=python:3.11

FROM ${BUILD_BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# The runtime's environment gets no pip of its own: the builder's installs into it.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/gateway
COPY requirements.lock ./
RUN /opt/build/bin/pip --python /opt/gateway install --require-hashes -r requirements.lock
COPY requirements-build.lock ./
RUN /opt/build/bin/pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md compile_gateway.py ./
COPY gateway gateway
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/gateway install --no-deps --no-index dist/*.whl \
 && /opt/build/bin/python compile_gateway.py /opt/gateway/lib/python3.*/site-packages

FROM ${BASE}
LABEL org.opencontainers.image.title="inference-gateway" \
      org.opencontainers.image.description="The front door of LLM inference pools" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GATEWAY_CONFIG=/etc/gateway/config.yaml
# A number, so that Kubernetes can see that it is not root; the files are readable for whichever UID it puts in its place.
USER 10001:10001
EXPOSE 8080 9090
# Exec form: the gateway is PID 1 and gets SIGTERM itself. Health is for the orchestrator's probes on the operator listener.
ENTRYPOINT ["gateway"]
CMD ["serve"]
