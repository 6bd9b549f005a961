//! The single layer of an image: a gzip-compressed tar with fixed times and owners, sorted by path.

use std::{
    fs::File,
    io::{self, Write},
};

use anyhow::Context;
use data_encoding::HEXLOWER;
use flate2::{Compression, write::GzEncoder};
use sha2::Digest;
use tar::{Builder, EntryType, Header};

use super::{Image, Program, hash::Hashed};

/// Entries for root and for the user that images run as, for programs that look users up.
const PASSWD: &str = "root:x:0:0:root:/tmp:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// Lookup order for glibc, which would ask DNS first without this file.
const NSSWITCH: &str = "hosts: files dns\n";

/// An image is packed once and fetched often; a program with debug information takes too long to pack well.
const COMPRESSION: fn() -> Compression =
    if cfg!(debug_assertions) { Compression::fast } else { Compression::best };

/// A layer, ready for an archive; [`Image::KubeNode`] and [`Image::Pause`] may share one.
pub struct Layer {
    /// The compressed tar.
    pub(super) blob: Vec<u8>,
    /// SHA-256 of the uncompressed tar; the image config names its layers by it.
    pub(super) diff_id: String,
    pub(super) architecture: &'static str,
}

/// Programs of an image.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Main program of the image.
    pub program: &'a Program,
    /// Program that machines run, in the image of kube-node; `program` when absent.
    pub machine: Option<&'a Program>,
    /// Program for /bin/sh.
    pub shell: Option<&'a Program>,
}

impl Contents<'_> {
    /// Identifies a build: 12 hex digits of each program's hash.
    pub fn fingerprint(&self) -> anyhow::Result<String> {
        let Self { program, machine, shell } = *self;
        let programs = [Some(program), machine, shell].into_iter().flatten();
        Ok(programs.map(Program::fingerprint).collect::<Result<Vec<_>, _>>()?.join("-"))
    }
}

impl Layer {
    /// Builds the layer of an image.
    pub fn build(image: Image, contents: Contents<'_>) -> anyhow::Result<Self> {
        let Contents { program, machine, shell } = contents;
        let path = image.entrypoint()[0].trim_start_matches('/');
        let mut tar = Builder::new(Hashed::new(GzEncoder::new(Vec::new(), COMPRESSION())));
        if let Some(shell) = shell {
            folder(&mut tar, "bin/", 0o755)?;
            executable(&mut tar, "bin/sh", shell)?;
        }
        folder(&mut tar, "etc/", 0o755)?;
        for (path, text) in [("etc/group", GROUP), ("etc/nsswitch.conf", NSSWITCH), ("etc/passwd", PASSWD)] {
            let header = &mut header(EntryType::Regular, 0o644, text.len() as u64);
            tar.append_data(header, path, text.as_bytes())?;
        }
        executable(&mut tar, path, program)?;
        if let Some(machine_path) = image.machine_path() {
            match machine {
                Some(machine) => executable(&mut tar, machine_path, machine)?,
                // A hard link takes no space.
                None => tar.append_link(&mut header(EntryType::Link, 0o755, 0), machine_path, path)?,
            }
        }
        folder(&mut tar, "tmp/", 0o1777)?;
        let hashed = tar.into_inner()?;
        let diff_id = format!("sha256:{}", HEXLOWER.encode(&hashed.hash.finalize()));
        let blob = hashed.inner.finish()?;
        Ok(Self { blob, diff_id, architecture: program.architecture() })
    }
}

/// A tar header without time and owner.
pub(super) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

pub(super) fn folder(tar: &mut Builder<impl Write>, path: &str, mode: u32) -> io::Result<()> {
    tar.append_data(&mut header(EntryType::Directory, mode, 0), path, io::empty())
}

fn executable(tar: &mut Builder<impl Write>, path: &str, program: &Program) -> anyhow::Result<()> {
    let mut append = || {
        let file = File::open(program.path())?;
        let size = file.metadata()?.len();
        tar.append_data(&mut header(EntryType::Regular, 0o755, size), path, file)
    };
    append().with_context(|| format!("cannot read {}", program.path().display()))
}
