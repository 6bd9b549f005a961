//! Code generated from `proto/externalgrpc.proto`.

#![allow(missing_docs, clippy::pedantic, clippy::all)]

tonic::include_proto!("clusterautoscaler.cloudprovider.v1.externalgrpc");

/// File descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/externalgrpc.bin"));
