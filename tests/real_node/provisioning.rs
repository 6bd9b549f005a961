//! `provisioning` of kubemark machines: files, versions, and commands before the start.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    CLUSTER,
    kinds::{BOTH, Kind, UP, machine, process, ready},
    node::ctr,
};
use kube_node_testing::{Fixture, create, eventually, git_version};

/// Tag of the images with a shell.
const SHELL: &str = "shell";

pub async fn files_reach_the_machine_as_they_were_asked_for() {
    let _node = crate::NODE.read().await;
    let client = CLUSTER.client().await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-node-system");
    let maps: Api<ConfigMap> = Api::namespaced(client, "kube-node-system");
    create(&secrets, json!({"metadata": {"name": "ssh", "labels": {"kube-node.io/machine-file": "true"}}, "stringData": {"id": "key"}})).await.unwrap();
    create(&maps, json!({"metadata": {"name": "units"}, "data": {"unit": "[Unit]"}})).await.unwrap();
    let files = json!({"provisioning": {"files": [
        {"path": "/etc/ssh/key", "permissions": "0400", "secretKeyRef": {"name": "ssh", "key": "id"}},
        {"path": "/etc/demo/unit", "configMapKeyRef": {"name": "units", "key": "unit"}},
        {"path": "/etc/demo/unit.conf", "owner": "root:root", "permissions": "0640", "content": "a=b"},
        {"path": "/etc/demo/own", "content": "c"},
        {"path": "/etc/demo/number", "owner": "1000:2000", "permissions": "0600", "content": "d"},
    ]}});
    for kind in BOTH {
        let own = Fixture::new(&CLUSTER, &kind.name("files"), 1, kind.class(files.clone())).await;
        let node = ready(&own, 1).await.remove(0);
        let pid = process(&kind.program(&node.name_any())).unwrap();
        let root = format!("/proc/{pid}/root");
        for (path, content, owner, mode) in [
            ("ssh/key", "key", (65_532, 65_532), 0o400),
            ("demo/unit", "[Unit]", (65_532, 65_532), 0o644),
            ("demo/unit.conf", "a=b", (0, 0), 0o640),
            ("demo/own", "c", (65_532, 65_532), 0o644),
            ("demo/number", "d", (1_000, 2_000), 0o600),
        ] {
            let path = Path::new(&root).join("etc").join(path);
            assert_eq!(fs::read_to_string(&path).unwrap(), content, "{kind:?} {}", path.display());
            let is = fs::metadata(&path).unwrap();
            assert_eq!(
                ((is.uid(), is.gid()), is.mode() & 0o777),
                (owner, mode),
                "{kind:?} {}",
                path.display()
            );
        }
        own.clean_up().await;
    }
    secrets.delete("ssh", &DeleteParams::default()).await.unwrap();
    maps.delete("units", &DeleteParams::default()).await.unwrap();
}

pub async fn versions_are_reported_as_they_were_asked_for() {
    let _node = crate::NODE.read().await;
    // Of upstream it picks the image; what its kubelet says is the image's own.
    for (kind, version) in [(Kind::Fixture, "v1.35.1"), (Kind::Upstream, git_version().as_str())] {
        let mut class = kind.class(json!({"provisioning": {
            "kubelet": {"version": version}, "containerRuntime": {"name": "containerd", "version": "2.1.4"}}}));
        if kind == Kind::Upstream {
            class["kubemark"]["image"] = json!("localhost/kubemark");
        }
        let own = Fixture::new(&CLUSTER, &kind.name("version"), 1, class).await;
        let node = ready(&own, 1).await.remove(0);
        let info = node.status.unwrap().node_info.unwrap();
        assert_eq!(info.kubelet_version, version, "{kind:?}");
        assert_eq!(info.container_runtime_version, "containerd://2.1.4", "{kind:?}");
        own.clean_up().await;
    }
}

/// Puts images with a shell beside those of the node.
fn import_images_with_a_shell() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shell-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_kube-node"))
        .args(["image", "--shell", "/bin/busybox", "--tag", SHELL, "--output-dir"])
        .arg(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for image in ["kube-node", "kubemark"] {
        let path = dir.join(format!("{image}.tar"));
        ctr(&["images", "import", path.to_str().unwrap()]);
        assert!(ctr(&["images", "ls", "-q"]).contains(&format!("{image}:{SHELL}")));
    }
    fs::remove_dir_all(dir).unwrap();
}

/// Commands that work, then one that does not.
async fn commands_run_before_the_kubelet(kind: Kind) {
    let class = |commands: Value| {
        let mut class = kind.class(json!({"provisioning": {"commands": commands}}));
        if kind == Kind::Upstream {
            class["kubemark"]["image"] = json!(format!("localhost/kubemark:{SHELL}"));
        }
        class
    };
    let said = json!(["echo first > /tmp/said", "echo second >> /tmp/said"]);
    let own = Fixture::new(&CLUSTER, &kind.name("commands"), 1, class(said)).await;
    let node = ready(&own, 1).await.remove(0);
    let pid = process(&kind.program(&node.name_any())).unwrap();
    let path = Path::new("/proc").join(pid.to_string()).join("root/tmp/said");
    assert_eq!(fs::read_to_string(path).unwrap(), "first\nsecond\n", "{kind:?}");
    own.clean_up().await;

    let own =
        Fixture::new(&CLUSTER, &kind.name("failing"), 1, class(json!(["echo no such disk >&2", "exit 3"])))
            .await;
    let message = eventually("what failed is told", UP, async || {
        let (status, reason, message) = machine(own.my_nodes().await.first()?)?;
        let ended = ["ContainerExited", "CrashLoopBackOff"].contains(&reason.as_str());
        (status == "False" && ended && message.contains("no such disk")).then_some(message)
    })
    .await;
    println!("{kind:?}: {message}");
    own.clean_up().await;
}

pub async fn commands_of_an_upstream_image() {
    let _node = crate::NODE.read().await;
    import_images_with_a_shell();
    commands_run_before_the_kubelet(Kind::Upstream).await;
}

/// The operator's image of machines is one with a shell, for as long as this takes.
pub async fn commands_of_our_own_image() {
    let _node = crate::NODE.write().await;
    import_images_with_a_shell();
    let image = format!("operator=--machine-image=localhost/kube-node:{SHELL}");
    CLUSTER.down();
    CLUSTER.up(&[crate::UP, &["--component-arg", &image]].concat());
    commands_run_before_the_kubelet(Kind::Fixture).await;
    CLUSTER.down();
    CLUSTER.up(crate::UP);
}
