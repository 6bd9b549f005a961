//! Architecture of this computer.

use std::env::consts::ARCH;

/// Name of the architecture in Kubernetes, which is Go's.
pub const ARCHITECTURE: &str = match ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => ARCH,
};
