//! Stamps the programs with the build that they are of: the profile, and a hash of the sources. A stale program beside a
//! new one is found out by the stamp. No path and no time of this machine goes in, so the same sources have the same stamp
//! everywhere. Only this package has the stamp: no crate of the workspace is compiled again because another one changed.

use std::{env, fs, io, path::Path};

use sha2::{Digest, Sha256};

/// What is compiled into the programs, and what says how.
const SOURCES: [&str; 5] = ["Cargo.lock", "Cargo.toml", "build.rs", "charts/kube-node/files", "src"];

fn main() -> io::Result<()> {
    let mut hash = Sha256::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        add(&mut hash, Path::new(source)).map_err(|error| io::Error::other(format!("{source}: {error}")))?;
    }
    let set = |name: &str| env::var(name).unwrap_or_default();
    for name in ["TARGET", "OPT_LEVEL"] {
        hash.update(set(name));
    }
    let stamp = hash.finalize().iter().take(6).fold(0_u64, |stamp, byte| (stamp << 8) | u64::from(*byte));
    println!("cargo::rustc-env=KUBE_NODE_STAMP={}-{stamp:012x}", set("PROFILE"));
    Ok(())
}

/// Adds a file, or all files below a folder in the order of their names.
fn add(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    if path.is_dir() {
        let mut entries =
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        entries.sort();
        return entries.iter().try_for_each(|entry| add(hash, entry));
    }
    let content = fs::read(path)?;
    // With its length, so that what moves from one file to the next is a change.
    hash.update(format!("{}\n{}\n", path.display(), content.len()));
    hash.update(content);
    Ok(())
}
