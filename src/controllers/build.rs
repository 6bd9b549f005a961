//! Generates the gRPC code of `autoscaler/proto` without an installed `protoc`: server, client (for tests and
//! benchmarks) and the descriptors for reflection.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=autoscaler/proto");
    let mut compiler = protox::Compiler::new(["autoscaler/proto"])?;
    compiler.include_imports(true).open_file("externalgrpc.proto")?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("externalgrpc.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure().build_transport(false).compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
