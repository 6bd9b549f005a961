//! What the build makes of `proto/externalgrpc.proto`.

#![allow(missing_docs, clippy::pedantic, clippy::all)]

tonic::include_proto!("clusterautoscaler.cloudprovider.v1.externalgrpc");

/// The descriptors of it, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/externalgrpc.bin"));
