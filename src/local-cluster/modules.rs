//! Go modules pinned in `modules/` and the programs built from them.
//!
//! Each module has its own go.mod, so that no program is built with the dependencies of another one.

/// Programs that `up` needs.
pub const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
/// Programs that a real node needs in addition.
pub const REAL_NODE: [&str; 2] = ["kubelet", "kube-proxy"];
/// Program in the image of upstream kubemark.
pub const KUBEMARK: [&str; 1] = ["kubemark"];
/// Kubernetes version that is built unless another one is asked for: that of the client libraries.
pub const KUBERNETES_VERSION: &str = "1.36.3";
/// containerd version that is built.
pub const CONTAINERD_VERSION: &str = "2.2.9";
/// runc version that is built.
pub const RUNC_VERSION: &str = "1.5.2";
/// Version of the CNI plugins that are built.
pub const CNI_VERSION: &str = "1.9.1";
/// containerd, its shim and its client.
pub const CONTAINERD_PROGRAMS: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];
/// The OCI runtime that containerd's shim calls.
pub const RUNC_PROGRAMS: [&str; 1] = ["runc"];
/// CNI plugins of the real node's network.
pub const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];

/// Import path of the packages of Kubernetes' programs.
const KUBERNETES: &str = "k8s.io/kubernetes";
/// Import path of etcd, whose program Go calls `server`.
const ETCD: &str = "go.etcd.io/etcd/server/v3";
const CONTAINERD: &str = "github.com/containerd/containerd/v2";
const RUNC: &str = "github.com/opencontainers/runc";
const CNI: &str = "github.com/containernetworking/plugins";

/// A pinned module and the sources of its programs.
#[derive(Debug)]
pub(super) struct Module {
    /// Import path of the module that its go.mod pins.
    path: &'static str,
    /// Pinned version.
    pub(super) version: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// True if the module contains C code, which needs a C compiler.
    pub(super) cgo: bool,
    pub(super) tags: &'static str,
    /// The one file of a dependency that is replaced, if any: its import path, and the text that is compiled instead.
    pub(super) replaced: Option<(&'static str, &'static str)>,
}

/// A module that is built as it is, without C code and tags: its path, its version, and its folder in `modules/`.
macro_rules! module {
    ($path:ident, $version:expr, $folder:literal) => {
        Module {
            path: $path,
            version: $version,
            go_mod: include_str!(concat!("modules/", $folder, "/go.mod")),
            go_sum: include_str!(concat!("modules/", $folder, "/go.sum")),
            cgo: false,
            tags: "",
            replaced: None,
        }
    };
}

pub(super) static KUBERNETES_1_35: Module = module!(KUBERNETES, "1.35.4", "kubernetes-1.35");
pub(super) static KUBERNETES_1_36: Module = module!(KUBERNETES, KUBERNETES_VERSION, "kubernetes-1.36");
pub(super) static KUBERNETES_1_37: Module = module!(KUBERNETES, "1.37.2", "kubernetes-1.37");
pub(super) static ETCD_3_6: Module = module!(ETCD, "3.6.8", "etcd-3.6");
pub(super) static ETCD_3_7: Module = module!(ETCD, "3.7.0", "etcd-3.7");

/// Modules of a real node's programs besides Kubernetes.
pub(super) static RUNTIME: [&Module; 3] = [
    &Module {
        // Without the snapshotters that the node's configuration disables, and without tracing.
        tags: "urfave_cli_no_docs,no_btrfs,no_devmapper,no_zfs,no_tracing",
        ..module!(CONTAINERD, CONTAINERD_VERSION, "containerd")
    },
    &Module {
        // The code that enters namespaces is C: it runs before Go starts its threads.
        cgo: true,
        tags: "urfave_cli_no_docs,netgo,osusergo",
        replaced: Some((
            "github.com/opencontainers/runc/libcontainer/seccomp/seccomp_unsupported.go",
            include_str!("modules/runc/seccomp.go"),
        )),
        ..module!(RUNC, RUNC_VERSION, "runc")
    },
    &module!(CNI, CNI_VERSION, "cni"),
];

impl Module {
    /// Name of the module's folder during a build.
    pub(super) fn name(&self) -> &'static str {
        self.path.trim_end_matches("/v3").trim_end_matches("/v2").rsplit('/').next().unwrap_or(self.path)
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
        let Self { version, .. } = self;
        let stamp = match self.path {
            KUBERNETES => {
                let mut parts = version.split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                let variables = "-X k8s.io/component-base/version";
                format!(
                    " {variables}.gitVersion=v{version} {variables}.gitMajor={major} {variables}.gitMinor={minor}"
                )
            }
            CONTAINERD => format!(" -X {CONTAINERD}/version.Version=v{version}"),
            // A static binary, which runs wherever it is mounted.
            _ if self.cgo => " -linkmode external -extldflags -static".to_owned(),
            _ => String::new(),
        };
        format!("-s -w{stamp}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        build::MINIMUM_GO,
        executable::release_in,
        release::{RELEASES, Release},
    };

    fn modules() -> Vec<&'static Module> {
        RELEASES.iter().flat_map(Release::modules).chain(RUNTIME).collect()
    }

    fn package(program: &'static str) -> Option<&'static str> {
        modules().into_iter().find_map(|module| module.package(program))
    }

    #[test]
    fn versions_are_those_of_the_modules() {
        for Module { path, version, go_mod, .. } in modules() {
            assert!(
                go_mod.contains(&format!("{path} v{version}")),
                "no go.mod pins {path} v{version}:\n{go_mod}"
            );
        }
    }

    #[test]
    fn no_module_wants_a_newer_go_than_the_one_that_is_asked_for() {
        for module in modules() {
            let go = module.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
            assert!(
                release_in(go).unwrap() <= MINIMUM_GO,
                "{} {} wants Go {go}",
                module.path,
                module.version
            );
        }
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for (program, path) in [
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            ("runc", "github.com/opencontainers/runc"),
            ("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
        ] {
            assert_eq!(package(program), Some(path));
        }
        for release in &RELEASES {
            for program in [&CONTROL_PLANE[..], &REAL_NODE, &KUBEMARK].concat() {
                let found = release.modules().iter().any(|module| module.package(program).is_some());
                assert!(found, "Kubernetes {release} has no tool {program}");
            }
        }
        let programs: [&[&str]; 3] = [&CONTAINERD_PROGRAMS, &RUNC_PROGRAMS, &CNI_PLUGINS];
        for program in programs.concat() {
            assert!(package(program).is_some(), "no module has the tool {program}");
        }
    }

    #[test]
    fn the_version_is_stamped_in() {
        let flags = KUBERNETES_1_37.ldflags();
        assert!(
            flags.contains("version.gitVersion=v1.37.2 ") && flags.ends_with("version.gitMinor=37"),
            "{flags}"
        );
    }
}
