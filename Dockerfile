# The server and its client in a small image without compilers, shells' comforts or root.
#
#   docker build -t tokenbutler .
#   docker run --rm -p 50051:50051 -p 9464:9464 -v /path/to/model.gguf:/models/model.gguf:ro tokenbutler
#
# scripts/image does the same, also where there is no Docker. `--target test` builds and runs the unit tests.
ARG BASE=docker.io/library/debian:12-slim

# --- Compile, with what scripts/setup installs everywhere else.
FROM ${BASE} AS build
ENV TOKENBUTLER_CACHE=/opt/tokenbutler
WORKDIR /src
COPY scripts/setup scripts/packages.txt scripts/
COPY scripts/lib/console.sh scripts/lib/download.sh scripts/lib/
RUN scripts/setup build && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake/ cmake/
COPY proto/ proto/
COPY base/ base/
COPY offload/ offload/
COPY engine/ engine/
COPY server/ server/
COPY tools/ tools/
COPY assets/ assets/
RUN cmake --preset cpu-release -DTOKENBUTLER_BUILD_TESTS=OFF -DTOKENBUTLER_BUILD_BENCH=OFF \
    && cmake --build build/cpu-release --target tokenbutler-server tokenbutler
# What a server needs at run time, at the paths where it was linked (/opt/tokenbutler is in its RUNPATH, and
# LibTorch finds its own libraries relative to itself).
RUN mkdir -p /stage/usr/local/bin \
    && cp build/cpu-release/server/tokenbutler-server build/cpu-release/tools/cli/tokenbutler /stage/usr/local/bin/ \
    && mkdir -p /stage/usr/local/share/tokenbutler \
    && cp -r assets/predictors /stage/usr/local/share/tokenbutler/ \
    && cd / && cp --parents -r opt/tokenbutler/torch-2.11.0/torch/lib opt/tokenbutler/torch-2.11.0/nvidia/cu13/lib \
        opt/tokenbutler/torch-2.11.0/torch-2.11.0.dist-info/licenses /stage/ \
    && find /stage -type f \( -name '*.so' -o -name '*.so.*' -o -path '*/bin/*' \) -exec strip --strip-unneeded {} +

# --- The unit tests, in the same environment: docker build --target test .
FROM build AS test
COPY bench/ bench/
COPY tests/ tests/
COPY scripts/ scripts/
# The pages and what they point to: a test compares them with the code.
COPY README.md CONTRIBUTING.md ./
COPY docs/ docs/
COPY deploy/ deploy/
RUN cmake --preset cpu-release -DTOKENBUTLER_BUILD_TESTS=ON \
    && cmake --build build/cpu-release \
    && ctest --test-dir build/cpu-release --output-on-failure --no-tests=error -L unit

# --- Run.
FROM ${BASE} AS runtime
COPY scripts/packages.txt /tmp/
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        $(awk '/^\[/ {inside = ($1 == "[runtime]"); next} inside && /^[a-z0-9]/ {print $1}' /tmp/packages.txt) \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /tmp/packages.txt
COPY --from=build /stage/ /
# Every library is there, or the image is not made.
RUN tokenbutler-server --version && tokenbutler --version
USER 65532:65532
WORKDIR /models
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["tokenbutler", "health", "--server", "127.0.0.1:50051"]
ENTRYPOINT ["tokenbutler-server", "--host", "0.0.0.0", "--port", "50051", "--metrics-port", "9464"]
CMD ["--model", "/models/model.gguf"]
