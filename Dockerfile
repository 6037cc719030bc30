# Two images from one file: `--target worker` and `--target sink`. Packages come from hash locks, jars from jvm/jars.lock.
FROM python:3.11-slim AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /opt/uow
COPY requirements/build.lock requirements/
RUN pip install --quiet --require-hashes --only-binary :all: -r requirements/build.lock

FROM base AS worker-packages
COPY requirements/worker.lock requirements/
RUN pip install --quiet --require-hashes --only-binary :all: -r requirements/worker.lock

FROM worker-packages AS worker
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation . && useradd --create-home uow
USER uow
WORKDIR /home/uow
ENTRYPOINT ["uow"]
CMD ["worker", "-c", "/etc/uow/uow.toml"]

FROM base AS sink-packages
COPY requirements/spark.lock requirements/
# pyspark comes as source; the build tools of `base` build it
RUN pip install --quiet --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation -r requirements/spark.lock

FROM sink-packages AS sink
COPY . .
ENV UOW_JARS=/opt/uow/.jars
RUN pip install --quiet --no-deps --no-build-isolation . && python -m jvm.jars \
    && useradd --create-home uow && mkdir /tables && chown -R uow /tables /opt/uow/.jars
USER uow
WORKDIR /home/uow
ENTRYPOINT ["uow"]
CMD ["sink", "-c", "/etc/uow/uow.toml", "--tables", "/tables"]
