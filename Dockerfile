# The web process only, with the packages that a PaaS installs: no Spark, no Java, no compiler.
#
#     docker build -t kafkasse .
#     docker run -p 127.0.0.1:6917:6917 -e KAFKASSE_BOOTSTRAP_SERVERS=broker.example:9092 \
#         -e KAFKASSE_ALLOWED_TOPICS=orders -e KAFKASSE_PUBLIC=true kafkasse

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
RUN python -m venv /venv
COPY requirements.txt /
RUN /venv/bin/pip install --no-cache-dir -r /requirements.txt && /venv/bin/pip uninstall --yes pip
WORKDIR /app
COPY schemas schemas
COPY gunicorn.conf.py wsgi.py ./
COPY kafkasse kafkasse
COPY kafkasse_client kafkasse_client
# Compile now: the user below cannot write bytecode, so Python would compile the package again at each start.
RUN /venv/bin/python -m compileall -q kafkasse kafkasse_client wsgi.py

FROM python:${PYTHON}-slim
COPY --from=build /venv /venv
COPY --from=build /app /app
ENV PATH=/venv/bin:$PATH PORT=6917 PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
EXPOSE 6917
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=2); c.request('GET', '/-/health'); assert c.getresponse().status == 200"]
CMD ["gunicorn", "-c", "gunicorn.conf.py", "wsgi:app"]
