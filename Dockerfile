# An image that runs consumers. docs/deploy.md says how to add a component to it.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# The address of another package index than pip's own; not kept in the image.
ARG PIP_INDEX_URL
COPY . /source
RUN python3 -m venv /build \
 && /build/bin/pip wheel --quiet --no-deps --wheel-dir /wheels /source

FROM ${BASE}
ARG EXTRAS=metrics
ARG PIP_INDEX_URL
RUN useradd --create-home --home-dir /srv/reservation --shell /usr/sbin/nologin reservation
USER reservation
WORKDIR /srv/reservation
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# The embedded PostgreSQL and Spark are left out: an image of consumers needs neither.
RUN python3 -m venv /srv/reservation/venv \
 && venv/bin/pip install --quiet --no-cache-dir --constraint /wheels/constraints.txt \
      "$(echo /wheels/*.whl)[${EXTRAS}]"
ENV PATH=/srv/reservation/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/srv/reservation/cache
# With Spark, Java's classes as Java loads them fastest, for whatever user runs the image.
RUN case ",${EXTRAS}," in *,spark,*) reservation spark prepare ;; esac
WORKDIR /app
# Without a shell, which would keep signals to itself.
ENTRYPOINT ["reservation"]
