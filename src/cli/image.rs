//! `kube-node image`: image archives for `ctr -n k8s.io images import`, `docker load` and `podman load`.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kube_node_api::names::MACHINE_PROGRAM;
use local_cluster::{
    Binaries, Progress, binaries,
    images::{self, Contents, Layer, Program},
};

/// Arguments of `image`.
#[derive(Debug, Args)]
pub struct Image {
    /// Image to write
    #[arg(value_name = "IMAGE", value_enum, default_value_t)]
    which: Which,
    /// Folder for the archives
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Folder of kube-node and kube-node-machine of one build, such as a build for another architecture; this
    /// program and the machine program beside it when absent
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Folder of the kubemark program; located or built when absent
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Static shell, such as busybox, to install as /bin/sh in the images kube-node and kubemark
    #[arg(long, value_name = "FILE")]
    shell: Option<PathBuf>,
    /// Tag of the images; their versions when absent. Images with another tag do not replace those of `up`
    #[arg(long, value_name = "TAG", value_parser = tag)]
    tag: Option<String>,
}

/// Parses a tag that registries accept.
fn tag(text: &str) -> Result<String, String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let fits = text.bytes().next().is_some_and(is_word)
        && text.len() <= 128
        && text.bytes().all(|byte| is_word(byte) || b".-".contains(&byte));
    let wrong =
        "a tag is up to 128 letters, digits, '_', '.' and '-', and begins with neither of the last two";
    if fits { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

/// Images that can be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Operator, hollow kubelet and kubemark proxy
    KubeNode,
    /// Upstream kubemark
    Kubemark,
    /// Sandbox, which holds the namespaces of a pod
    Pause,
    /// All of these images
    #[default]
    All,
}

impl Which {
    fn images(self) -> &'static [images::Image] {
        match self {
            Self::KubeNode => &[images::Image::KubeNode],
            Self::Kubemark => &[images::Image::Kubemark],
            Self::Pause => &[images::Image::Pause],
            Self::All => &images::Image::ALL,
        }
    }
}

impl Image {
    /// Writes the archives and prints their names.
    pub async fn run(self) -> anyhow::Result<()> {
        let remedy = "name a static one, such as /bin/busybox of the package busybox-static";
        let shell = self.shell.as_deref().map(|path| Program::check(path, remedy)).transpose()?;
        fs::create_dir_all(&self.output_dir)
            .with_context(|| format!("cannot create {}", self.output_dir.display()))?;
        if self.programs.is_some() && matches!(self.which, Which::Kubemark | Which::All) {
            bail!("--programs packs kube-node or pause: name one of them");
        }
        let own = if self.which == Which::Kubemark { None } else { Some(self.own()?) };
        for &image in self.which.images() {
            let (program, machine) = match &own {
                Some((whole, machine)) if image != images::Image::Kubemark => {
                    (whole.clone(), machine.as_ref())
                }
                _ => (self.kubemark().await?, None),
            };
            // The sandbox runs one program and no user's commands.
            let shell = shell.as_ref().filter(|_| image != images::Image::Pause);
            let path = self.output_dir.join(format!("{}.tar", image.stem()));
            let contents = Contents { program: &program, machine, shell };
            let written = images::write(image, self.tag.as_deref(), &Layer::build(image, contents)?, &path)?;
            let images::Written { name, digest, path, bytes } = written;
            let size = bytes as f64 / 1e6;
            super::print_line(format_args!("{}  {size:.1} MB  {name}  {digest}", path.display()));
        }
        Ok(())
    }

    /// The kube-node program and the machine program.
    fn own(&self) -> anyhow::Result<(Program, Option<Program>)> {
        let Some(dir) = &self.programs else {
            let whole = std::env::current_exe().context("cannot find the program of kube-node itself")?;
            let machine = images::machine_beside(&whole).map_err(|why| eprintln!("{why:#}"));
            return Ok((Program::itself()?, machine.ok()));
        };
        // The build stamps cannot be compared: the programs may not run on this machine.
        let program = |name| Program::check(&dir.join(name), "build it in the folder of kube-node's sources");
        let (whole, machine) = (program("kube-node")?, program(MACHINE_PROGRAM)?);
        if whole.architecture() != machine.architecture() {
            bail!("{}: kube-node and {} are for different machines", dir.display(), MACHINE_PROGRAM);
        }
        Ok((whole, Some(machine)))
    }

    async fn kubemark(&self) -> anyhow::Result<Program> {
        let progress = Progress::stderr();
        let found = Binaries::locate(self.binaries.as_deref(), &binaries::KUBEMARK, &progress).await;
        progress.finish();
        Program::check(&found?.path("kubemark"), "build it with CGO_ENABLED=0, or leave --binaries away")
    }
}
