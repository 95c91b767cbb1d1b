# fl-lightning in an image whose default command is the demo (make demo):
#
#   docker build --tag fl-lightning . && docker run --rm fl-lightning
#
# torch comes from pip's usual index. An index that has torch for CPUs alone makes a smaller image; PyTorch's page on
# installation gives the index's address: --build-arg PIP_EXTRA_INDEX_URL=ADDRESS. Extras of pyproject.toml are installed
# by their names in brackets: --build-arg EXTRAS=[mlflow,huggingface]
ARG PYTHON=3.11
FROM python:${PYTHON}-slim
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS
WORKDIR /opt/fl-lightning
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS}"
RUN useradd --create-home learner
USER learner
WORKDIR /home/learner
CMD ["python", "/opt/fl-lightning/examples/demo.py"]
