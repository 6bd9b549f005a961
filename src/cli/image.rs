//! `kube-node image`: image archives for `ctr -n k8s.io images import`, `docker load` and `podman load`, and pushes to
//! registries.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use kube_node_api::{ARCHITECTURE, names::MACHINE_PROGRAM};
use local_cluster::{
    Binaries, Progress, binaries,
    images::{self, Contents, Layer, Packed, Program, registry, registry::Repository},
    progress::megabytes,
};

/// Arguments of `image`.
#[derive(Debug, Args)]
pub struct Image {
    /// Image to write or to push; all when absent, or kube-node with --push
    #[arg(value_name = "IMAGE", value_enum)]
    which: Option<Which>,
    /// Folder for the archives
    #[arg(long, value_name = "DIR", required_unless_present = "push")]
    output_dir: Option<PathBuf>,
    /// Push one image to this repository, such as ghcr.io/me/kube-node, with the credentials of docker login or podman
    /// login. The last line of the output is its name with tag and digest
    #[arg(long, value_name = "REGISTRY/NAME", value_parser = Repository::parse, conflicts_with = "output_dir")]
    push: Option<Repository>,
    /// Push nothing, and print what a push would print: the digest follows from the programs
    #[arg(long, requires = "push")]
    dry_run: bool,
    /// Push by http instead of https; the default for localhost and loopback addresses
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", conflicts_with = "output_dir")]
    plain_http: Option<bool>,
    /// Folder of kube-node and kube-node-machine of one build, such as a build for another architecture; this
    /// program and the machine program beside it when absent. With --push also one folder for each architecture
    #[arg(long, value_name = "DIR")]
    programs: Vec<PathBuf>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Operator, hollow kubelet and kubemark proxy
    KubeNode,
    /// Upstream kubemark
    Kubemark,
    /// Sandbox, which holds the namespaces of a pod
    Pause,
    /// All of these images
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

/// The programs of an image for one architecture.
struct Build {
    program: Program,
    /// The machine program; `program` stands for it when absent.
    machine: Option<Program>,
}

impl Build {
    /// This program, and the machine program beside it if it is of the same build.
    fn running() -> anyhow::Result<Self> {
        let whole = std::env::current_exe().context("cannot find the program of kube-node itself")?;
        let machine =
            images::machine_beside(&whole).map_err(|why| super::print_note(format_args!("{why:#}"))).ok();
        Ok(Self { program: Program::itself()?, machine })
    }

    /// The programs of a folder. Their build stamps cannot be compared: they may not run on this machine.
    fn of_folder(dir: &Path) -> anyhow::Result<Self> {
        let program = |name| Program::check(&dir.join(name), "build it in the folder of kube-node's sources");
        let (program, machine) = (program("kube-node")?, program(MACHINE_PROGRAM)?);
        if program.architecture() != machine.architecture() {
            bail!("{}: kube-node and {} are for different machines", dir.display(), MACHINE_PROGRAM);
        }
        Ok(Self { program, machine: Some(machine) })
    }

    fn layer(&self, image: images::Image, shell: Option<&Program>) -> anyhow::Result<Layer> {
        // The sandbox runs one program and no user's commands.
        let shell = shell.filter(|_| image != images::Image::Pause);
        if let Some(shell) = shell {
            let (shell, at, own) =
                (shell.architecture(), shell.path().display(), self.program.architecture());
            ensure!(shell == own, "{at} is for {shell}, and the image for {own}: name a shell for {own}");
        }
        Layer::build(image, Contents { program: &self.program, machine: self.machine.as_ref(), shell })
    }
}

impl Image {
    /// Writes the archives and prints their names, or pushes an image.
    pub async fn run(self) -> anyhow::Result<()> {
        let remedy = "name a static one, such as /bin/busybox of the package busybox-static";
        let shell = self.shell.as_deref().map(|path| Program::check(path, remedy)).transpose()?;
        let which = self.which.unwrap_or(if self.push.is_some() { Which::KubeNode } else { Which::All });
        if !self.programs.is_empty() && matches!(which, Which::Kubemark | Which::All) {
            bail!("--programs packs kube-node or pause: name one of them");
        }
        if let Some(repository) = &self.push {
            let &[image] = which.images() else {
                bail!("a repository has one image: name kube-node, pause or kubemark");
            };
            return self.push(image, self.own(which)?, shell.as_ref(), repository).await;
        }
        let dir = self.output_dir.as_deref().context("name a folder by --output-dir")?;
        self.write(which, &self.own(which)?, shell.as_ref(), dir).await
    }

    async fn write(
        &self,
        which: Which,
        own: &[Build],
        shell: Option<&Program>,
        dir: &Path,
    ) -> anyhow::Result<()> {
        ensure!(
            own.len() < 2,
            "an archive is for one architecture: name one folder by --programs, or push the image"
        );
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        for &image in which.images() {
            let layer = match own.first() {
                Some(build) if image != images::Image::Kubemark => build.layer(image, shell)?,
                _ => self.kubemark().await?.layer(image, shell)?,
            };
            let path = dir.join(format!("{}.tar", image.stem()));
            let images::Written { name, digest, path, bytes } =
                images::write(image, self.tag.as_deref(), &layer, &path)?;
            super::print_line(format_args!("{}  {}  {name}  {digest}", path.display(), megabytes(bytes)));
        }
        Ok(())
    }

    async fn push(
        &self,
        image: images::Image,
        own: Vec<Build>,
        shell: Option<&Program>,
        repository: &Repository,
    ) -> anyhow::Result<()> {
        let builds = if own.is_empty() { vec![self.kubemark().await?] } else { own };
        let tag = self.tag.as_deref().unwrap_or(image.tag());
        let mut packed = Vec::new();
        for build in &builds {
            packed.push(Packed::new(image, tag, &build.layer(image, shell)?));
        }
        let lines: Vec<String> = packed
            .iter()
            .map(|image| {
                format!("linux/{}  {}  {}", image.architecture(), megabytes(image.size()), image.digest())
            })
            .collect();
        if packed.iter().all(|image| image.architecture() != ARCHITECTURE) {
            super::print_note(format_args!(
                "note: the image does not run on machines like this one: none of its programs is for {ARCHITECTURE}"
            ));
        }
        let digest = if self.dry_run {
            registry::digest(&packed)
        } else {
            let progress = Progress::stderr();
            let pushed = registry::push(repository, tag, packed, self.plain_http, &progress).await;
            progress.finish();
            pushed?
        };
        for line in lines {
            super::print_line(line);
        }
        super::print_line(format_args!("{repository}:{tag}@{digest}"));
        Ok(())
    }

    /// Builds of kube-node itself, one for each architecture; none for an image of kubemark alone.
    fn own(&self, which: Which) -> anyhow::Result<Vec<Build>> {
        if which == Which::Kubemark {
            return Ok(Vec::new());
        }
        if self.programs.is_empty() {
            return Ok(vec![Build::running()?]);
        }
        let mut builds: Vec<Build> = Vec::new();
        for dir in &self.programs {
            let build = Build::of_folder(dir)?;
            let architecture = build.program.architecture();
            if let Some(other) = builds.iter().find(|other| other.program.architecture() == architecture) {
                let (other, own) = (other.program.path().display(), build.program.path().display());
                bail!("{other} and {own} are both for {architecture}: name one folder for each architecture");
            }
            builds.push(build);
        }
        Ok(builds)
    }

    async fn kubemark(&self) -> anyhow::Result<Build> {
        let progress = Progress::stderr();
        let found = Binaries::locate(self.binaries.as_deref(), &binaries::KUBEMARK, &progress).await;
        progress.finish();
        let remedy = "build it with CGO_ENABLED=0, or leave --binaries away";
        Ok(Build { program: Program::check(&found?.path("kubemark"), remedy)?, machine: None })
    }
}
