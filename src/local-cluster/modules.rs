//! Go modules pinned in `modules/` and the programs built from them.
//!
//! Each module has its own go.mod, so that no program is built with the dependencies of another one.

/// Kubernetes version that is built, as pinned in modules/kubernetes/go.mod.
pub const KUBERNETES_VERSION: &str = "1.36.3";
/// etcd version that is built, as pinned in modules/etcd/go.mod.
pub const ETCD_VERSION: &str = "3.6.8";
/// Programs that `up` needs.
pub const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
/// Programs that a real node needs in addition.
pub const REAL_NODE: [&str; 2] = ["kubelet", "kube-proxy"];
/// Program in the image of upstream kubemark.
pub const KUBEMARK: [&str; 1] = ["kubemark"];
/// containerd version that is built, as pinned in modules/containerd/go.mod.
pub const CONTAINERD_VERSION: &str = "2.2.9";
/// runc version that is built, as pinned in modules/runc/go.mod.
pub const RUNC_VERSION: &str = "1.5.2";
/// Version of the CNI plugins that are built, as pinned in modules/cni/go.mod.
pub const CNI_VERSION: &str = "1.9.1";
/// containerd, its shim and its client.
pub const CONTAINERD_PROGRAMS: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];
/// The OCI runtime that containerd's shim calls.
pub const RUNC_PROGRAMS: [&str; 1] = ["runc"];
/// CNI plugins of the real node's network.
pub const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// A pinned module and the sources of its programs.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// True if the module contains C code, which needs a C compiler.
    pub(super) cgo: bool,
    pub(super) tags: &'static str,
    /// The one file of a dependency that is replaced, if any: its import path, and the text that is compiled instead.
    pub(super) replaced: Option<(&'static str, &'static str)>,
}

pub(super) static KUBERNETES: Module = Module::plain(
    "kubernetes",
    include_str!("modules/kubernetes/go.mod"),
    include_str!("modules/kubernetes/go.sum"),
);

pub(super) static ETCD: Module =
    Module::plain("etcd", include_str!("modules/etcd/go.mod"), include_str!("modules/etcd/go.sum"));

pub(super) static CONTAINERD: Module = Module {
    // Without the snapshotters that the node's configuration disables, and without tracing.
    tags: "urfave_cli_no_docs,no_btrfs,no_devmapper,no_zfs,no_tracing",
    ..Module::plain(
        "containerd",
        include_str!("modules/containerd/go.mod"),
        include_str!("modules/containerd/go.sum"),
    )
};

pub(super) static RUNC: Module = Module {
    // The code that enters namespaces is C: it runs before Go starts its threads.
    cgo: true,
    tags: "urfave_cli_no_docs,netgo,osusergo",
    replaced: Some((
        "github.com/opencontainers/runc/libcontainer/seccomp/seccomp_unsupported.go",
        include_str!("modules/runc/seccomp.go"),
    )),
    ..Module::plain("runc", include_str!("modules/runc/go.mod"), include_str!("modules/runc/go.sum"))
};

pub(super) static CNI: Module =
    Module::plain("cni", include_str!("modules/cni/go.mod"), include_str!("modules/cni/go.sum"));

impl Module {
    /// A module of Go alone that is built as it is, without tags.
    const fn plain(name: &'static str, go_mod: &'static str, go_sum: &'static str) -> Self {
        Self { name, go_mod, go_sum, cgo: false, tags: "", replaced: None }
    }

    /// The module that has a program among its tools.
    pub(super) fn of(program: &'static str) -> &'static Self {
        let modules = [&ETCD, &CONTAINERD, &RUNC, &CNI];
        modules.into_iter().find(|module| module.package(program).is_some()).unwrap_or(&KUBERNETES)
    }

    /// Import path of a program's package: the tool of this name in go.mod.
    pub(super) fn package(&self, program: &'static str) -> Option<&'static str> {
        let (tools, _) = self.go_mod.split_once("\ntool ")?.1.split_once("\nrequire")?;
        let name = Self::file_name(program);
        let mut paths = tools.split_ascii_whitespace();
        paths.find(|path| path.trim_end_matches("/v3").rsplit('/').next() == Some(name))
    }

    /// Go's name for the built program: the last part of its import path that is not a version.
    pub(super) fn file_name(program: &'static str) -> &'static str {
        if program == "etcd" { "server" } else { program }
    }

    /// Linker flags. Without a version stamp kube-apiserver reports v0.0.0, which clients refuse.
    pub(super) fn ldflags(&self) -> String {
        let stamp = if self.name == KUBERNETES.name {
            let mut parts = KUBERNETES_VERSION.split('.');
            let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let version = "-X k8s.io/component-base/version";
            format!(
                " {version}.gitVersion=v{KUBERNETES_VERSION} {version}.gitMajor={major} {version}.gitMinor={minor}"
            )
        } else if self.name == CONTAINERD.name {
            format!(" -X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD_VERSION}")
        } else if self.cgo {
            // A static binary, which runs wherever it is mounted.
            " -linkmode external -extldflags -static".to_owned()
        } else {
            String::new()
        };
        format!("-s -w{stamp}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_modules() {
        for (module, path, version) in [
            (&KUBERNETES, "k8s.io/kubernetes", KUBERNETES_VERSION),
            (&ETCD, "go.etcd.io/etcd/server/v3", ETCD_VERSION),
            (&CONTAINERD, "github.com/containerd/containerd/v2", CONTAINERD_VERSION),
            (&RUNC, "github.com/opencontainers/runc", RUNC_VERSION),
            (&CNI, "github.com/containernetworking/plugins", CNI_VERSION),
        ] {
            let pinned = module.go_mod.contains(&format!("{path} v{version}"));
            assert!(pinned, "{} does not pin {path} v{version}", module.name);
        }
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for (program, package) in [
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            ("runc", "github.com/opencontainers/runc"),
            ("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
        ] {
            assert_eq!(Module::of(program).package(program), Some(package));
        }
        let programs: [&[&str]; 6] =
            [&CONTROL_PLANE, &REAL_NODE, &KUBEMARK, &CONTAINERD_PROGRAMS, &RUNC_PROGRAMS, &CNI_PLUGINS];
        for program in programs.concat() {
            assert!(Module::of(program).package(program).is_some(), "no module has the tool {program}");
        }
    }

    #[test]
    fn the_version_is_stamped_in() {
        let flags = KUBERNETES.ldflags();
        assert!(
            flags.contains("version.gitVersion=v1.36.3 ") && flags.ends_with("version.gitMinor=36"),
            "{flags}"
        );
    }
}
