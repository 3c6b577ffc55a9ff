# octavo for KServe, and for Triton and BentoML where an image is made by hand.
#   docker build --target cpu -t octavo:cpu .
#   docker build --target gpu -t octavo:gpu .
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY backend backend
COPY kernels kernels
COPY adapters adapters
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.11-slim AS base
ENV HF_HOME=/models/hub PYTHONUNBUFFERED=1 TMPDIR=/tmp
RUN useradd --uid 1000 --create-home octavo && mkdir -p /models/hub /mnt/models && chown -R octavo /models
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels

FROM base AS cpu
RUN pip install --no-cache-dir -c /tmp/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch \
    && pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/octavo-*.whl)[kserve,otel]" && rm -rf /wheels
USER 1000
EXPOSE 8080 8081
ENTRYPOINT ["python", "-m", "octavo_adapters.kserve"]
CMD ["--model_dir=/mnt/models", "--device=cpu"]

FROM base AS gpu
RUN pip install --no-cache-dir torch \
    && pip install --no-cache-dir "$(ls /wheels/octavo-*.whl)[kserve,otel]" && rm -rf /wheels
USER 1000
EXPOSE 8080 8081
ENTRYPOINT ["python", "-m", "octavo_adapters.kserve"]
CMD ["--model_dir=/mnt/models", "--device=cuda"]
