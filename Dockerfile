# The HTTP service. Models are in the volume /models; a token is required, because the service can
# be reached from outside of the container:
#
#     docker build -t remembering .          # --build-arg PIP_EXTRA_INDEX_URL=... for another torch
#     docker run -p 8000:8000 -v ./models:/models -e REMEMBERING_TOKEN=... remembering
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/remembering \
    && /opt/remembering/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve]'

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 remembering \
    && install -d -o remembering /models
COPY --from=build /opt/remembering /opt/remembering
ENV PATH=/opt/remembering/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE
USER 10001
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["remember", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/model"]
