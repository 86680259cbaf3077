# A party's image: tpsl in a virtual environment, no compiler, and a user who is not root. From the root of the project:
#
#     docker build -f deploy/docker/tpsl.Dockerfile -t tpsl-ROLE --build-arg ROLE=label --secret id=pip.conf,src=pip.conf .
#
# ROLE is label (has the labels and the vault, listens) or feature (has features, connects to the label party).
# pip.conf says where packages come from. It is mounted for the installation and is in no layer, nor are its passwords.
# TORCH is PyTorch without CUDA; 2.13.0 is the one with CUDA, some gigabytes larger.
ARG PYTHON=3.12
ARG ROLE=label

FROM python:${PYTHON}-slim AS build
ARG TORCH=2.13.0+cpu
ARG EXTRAS=align,serve
RUN python -m venv /opt/tpsl
ENV PATH=/opt/tpsl/bin:${PATH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY constraints.txt ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf pip install -c constraints.txt torch==${TORCH}
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf pip install -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}-slim AS common
RUN useradd --system --no-create-home --home-dir /tmp --uid 10001 --user-group tpsl \
    && install --directory --owner=tpsl --group=tpsl --mode=700 /runs /tpsl
COPY --from=build /opt/tpsl /opt/tpsl
# The root file system may be read-only: what Numba and Triton compile goes to /tmp.
ENV PATH=/opt/tpsl/bin:${PATH} \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    TRITON_CACHE_DIR=/tmp/triton \
    TPSL_HOME=/tpsl \
    TPSL_HEALTH=http://127.0.0.1:9101/metrics
WORKDIR /runs
USER 10001:10001
EXPOSE 7443 9101
# Of a scoring service TPSL_HEALTH is http://127.0.0.1:PORT/healthz.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-IS", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['TPSL_HEALTH'], timeout=5)"]

FROM common AS label
ENTRYPOINT ["tpsl", "label"]
CMD ["serve", "/etc/tpsl/job.yaml", "--local", "/etc/tpsl/local.yaml", "--set", "local.log=json"]

FROM common AS feature
ENTRYPOINT ["tpsl", "feature"]
CMD ["join", "/etc/tpsl/job.yaml", "--local", "/etc/tpsl/local.yaml", "--set", "local.log=json"]

FROM ${ROLE}
