# The image of kube-node for those who have a container engine; without one, `kube-node image` makes the same.
#
#   docker build --tag kube-node .
# By digest for what is published: docs/releases.md.
ARG BASE=rust:1.95-bookworm
FROM ${BASE} AS build
WORKDIR /source
COPY . .
# Linked statically, as .cargo/config.toml asks; below target/<tuple>, which differs between machines.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --profile dist --locked --bins \
    && install -D --strip --target-directory /image target/*/dist/kube-node target/*/dist/kube-node-machine \
    && install -d -m 1777 /image/tmp \
    && install -d /image/etc \
    && printf 'root:x:0:0:root:/tmp:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n' >/image/etc/passwd \
    && printf 'root:x:0:\nnonroot:x:65532:\n' >/image/etc/group \
    && printf 'hosts: files dns\n' >/image/etc/nsswitch.conf

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
WORKDIR /tmp
ENV PATH=/:/bin
# src/kube-ext/memory.rs
ENV GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=131072:glibc.malloc.mmap_threshold=131072
ENTRYPOINT ["/kube-node"]
