# Two images from one file: `--target worker` and `--target sink`. Packages come by hash locks, and pip resolves nothing (decision 106): `pip check`
# says afterwards that the set is complete. Jars come by uow/jvm/jars.lock.
# Everything is installed into /opt/uow in stages that have the build tools; the images have neither those nor sources.
FROM python:3.11-slim AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/build.lock requirements/
RUN pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/build.lock \
    && python -m venv --without-pip /opt/uow

FROM tools AS project
COPY . .
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist .

FROM tools AS worker-packages
COPY requirements/worker.lock requirements/
RUN pip --python /opt/uow/bin/python install --quiet --no-deps --require-hashes --only-binary :all: \
        -r requirements/worker.lock

FROM tools AS sink-packages
COPY requirements/spark.lock requirements/
# pyspark comes as source only
RUN pip wheel --quiet --no-deps --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation \
        --wheel-dir /wheels -r requirements/spark.lock \
    && pip --python /opt/uow/bin/python install --quiet --no-index --no-deps /wheels/*.whl && rm -r /wheels
COPY uow/__init__.py uow/
COPY uow/extras.py uow/
COPY uow/jvm uow/jvm
ENV UOW_JARS=/opt/uow/jars
# the second line prepares what a read-only image cannot make when it runs
RUN /opt/uow/bin/python -m uow.jvm.jars spark && rm /opt/uow/jars/.lock \
    && /opt/uow/bin/python -c "from uow.jvm import java; java.spark_home()"

FROM python:3.11-slim AS base
ENV PATH=/opt/uow/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# by number where it is used: Kubernetes' runAsNonRoot refuses a name
RUN useradd --uid 10001 --create-home uow && mkdir /etc/uow
WORKDIR /home/uow
ENTRYPOINT ["uow"]

FROM base AS worker
COPY --from=worker-packages /opt/uow /opt/uow
RUN --mount=type=bind,from=project,source=/dist,target=/dist \
    pip --python /opt/uow/bin/python install --quiet --no-cache-dir --no-index --no-deps /dist/*.whl \
    && pip --python /opt/uow/bin/python check
USER 10001
EXPOSE 6066
CMD ["worker", "-c", "/etc/uow/uow.toml"]

FROM base AS sink
RUN mkdir /tables && chown 10001 /tables
COPY --from=sink-packages /opt/uow /opt/uow
RUN --mount=type=bind,from=project,source=/dist,target=/dist \
    pip --python /opt/uow/bin/python install --quiet --no-cache-dir --no-index --no-deps /dist/*.whl \
    && pip --python /opt/uow/bin/python check
ENV UOW_JARS=/opt/uow/jars
USER 10001
VOLUME ["/tables"]
CMD ["sink", "-c", "/etc/uow/uow.toml", "--tables", "/tables"]
