# gradtool's program and Python package on Debian 12.
#   docker build -t gradtool .
#   docker build -t gradtool-cuda --build-arg CUDA=12-8 .      # with the GPU side, which takes an hour more; the build needs no card
#   docker run --rm -v "$PWD:/data" gradtool bench run.h5 --advise
ARG DEBIAN=bookworm

FROM debian:${DEBIAN}-slim AS base
# The version of NVIDIA's packages for Debian 12, such as 12-8; empty leaves the GPU side out.
ARG CUDA=
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-venv && \
    if [ -n "$CUDA" ]; then \
      apt-get install -y -qq --no-install-recommends curl && \
      curl -fsSLO https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb && \
      dpkg -i cuda-keyring_1.1-1_all.deb && rm cuda-keyring_1.1-1_all.deb && apt-get update -qq && \
      apt-get install -y -qq --no-install-recommends "libcublas-$CUDA" "libcusolver-$CUDA" libnccl2; \
    fi

FROM base AS build
ARG CUDA=
RUN if [ -n "$CUDA" ]; then \
      apt-get install -y -qq --no-install-recommends "cuda-nvcc-$CUDA" "cuda-cudart-dev-$CUDA" "cuda-cccl-$CUDA" "libcufft-dev-$CUDA" \
        "libcublas-dev-$CUDA" "libcusolver-dev-$CUDA" libnccl-dev; \
    fi
WORKDIR /gradtool
COPY scripts/setup.sh scripts/pypi.txt scripts/
RUN scripts/setup.sh
COPY . .
RUN GRADTOOL_PROGRAM=ON GRADTOOL_CUDA="$([ -n "$CUDA" ] && echo AUTO || echo OFF)" \
    PATH="$PATH:/usr/local/cuda/bin" scripts/wheel.sh /wheels

FROM base
COPY --from=build /wheels /wheels
RUN python3 -m venv /opt/gradtool && /opt/gradtool/bin/pip install --no-cache-dir /wheels/*.whl pandas && rm -r /wheels
ENV PATH=/opt/gradtool/bin:$PATH
WORKDIR /data
ENTRYPOINT ["gradtool"]
