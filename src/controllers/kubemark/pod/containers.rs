//! The containers of a machine's pod.

use kube_node_api::{KubemarkMachine, names::MACHINE_PROGRAM};
use kube_node_planner::revision;
use serde_json::{Value, json};

use super::{Blueprint, CONTAINER, File, KEY_PROXY_KUBECONFIG, PROXY_ADDRESS, USER};

/// Port of /healthz and /readyz of our own programs.
const PROBE_PORT: i32 = 10_248;
/// Input of the machine, written by the provider.
const MACHINE_DIR: &str = "/var/run/kube-node/machine";
/// State of the machine.
const STATE_DIR: &str = "/var/run/kube-node/state";
/// Kubeconfig for the kubemark proxy, at the default path of an upstream kubemark.
const PROXY_KUBECONFIG: &str = "/kubeconfig/kubeconfig";
/// Files as the Secret has them, and as the machine gets them.
const SECRET_FILES_DIR: &str = "/var/run/kube-node/secret-files";
const FILES_DIR: &str = "/var/run/kube-node/files";

/// Container of the hollow kubelet from our own image.
pub(super) fn own(blueprint: &Blueprint<'_>, settings: &KubemarkMachine, files: &[File]) -> Value {
    let mut args = program_args("hollow-node", blueprint);
    args.extend(settings.extra_args.clone());
    let mut mounts = own_mounts();
    // The commands of the class need scratch space.
    mounts.push(scratch());
    mounts.extend(file_mounts(files));
    container(json!({
        "name": CONTAINER,
        "image": blueprint.own_image,
        "command": machine_program(),
        "args": args,
        // Addresses of which the Node shows the IPv4 one.
        "env": [{ "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIPs" } } }],
        "resources": resources(settings),
        "startupProbe": probe("/healthz", 1, 60),
        "livenessProbe": probe("/healthz", 10, 6),
        "readinessProbe": probe("/readyz", 5, 3),
        "volumeMounts": mounts,
    }))
}

/// Container of an upstream kubemark. It reports to the kubemark proxy, which reports to the API server.
pub(super) fn upstream(
    blueprint: &Blueprint<'_>,
    settings: &KubemarkMachine,
    image: &str,
    files: &[File],
) -> Value {
    let machine = blueprint.machine;
    let amount = |name: &str| machine.capacity.get(name).map(|amount| format!("{name}={}", amount.0));
    // kubemark has flags for these three; the proxy reports the other resources of the class.
    let resources_of: Vec<String> =
        ["cpu", "memory", "ephemeral-storage"].into_iter().filter_map(amount).collect();
    let mut args = vec![
        "--morph=kubelet".to_owned(),
        format!("--name={}", blueprint.id.node),
        format!("--kubeconfig={PROXY_KUBECONFIG}"),
        "--kube-api-content-type=application/json".to_owned(),
        // kubemark would talk to the container runtime of the hosting node.
        "--use-host-image-service=false".to_owned(),
        "--kubelet-read-only-port=0".to_owned(),
        "--cert-dir=/tmp/certs".to_owned(),
        format!("--extended-resources={}", resources_of.join(",")),
    ];
    if let Some(pods) = machine.capacity.get("pods") {
        args.push(format!("--max-pods={}", pods.0));
    }
    args.extend(settings.extra_args.clone());
    let commands = machine.provisioning.as_ref().and_then(|p| p.commands.as_deref()).unwrap_or_default();
    let command = if commands.is_empty() {
        json!(["/kubemark"])
    } else {
        // The commands run in the container itself, so that their changes are there when the kubelet starts.
        let script = format!("set -e\n{}\nexec /kubemark \"$@\"\n", commands.join("\n"));
        json!(["/bin/sh", "-c", script, "kubemark"])
    };
    // Neither token nor key.
    let mut mounts =
        vec![sub_path(mount("machine", PROXY_KUBECONFIG, true), KEY_PROXY_KUBECONFIG), scratch()];
    mounts.extend(file_mounts(files));
    container(json!({
        "name": CONTAINER,
        "image": with_tag(image, machine),
        "command": command,
        "args": args,
        "resources": resources(settings),
        "volumeMounts": mounts,
    }))
}

/// Sidecar with the kubemark proxy: up before kubemark starts, and until kubemark has ended.
pub(super) fn proxy(blueprint: &Blueprint<'_>) -> Value {
    let mut args = program_args("kubemark-proxy", blueprint);
    args.push(format!("--listen={PROXY_ADDRESS}"));
    container(json!({
        "name": "kubemark-proxy",
        "image": blueprint.own_image,
        "command": machine_program(),
        "args": args,
        "restartPolicy": "Always",
        // The class's resources are for kubemark.
        "resources": { "requests": { "cpu": "5m", "memory": "10Mi" } },
        // kubemark starts once the proxy has the machine's identity.
        "startupProbe": probe("/readyz", 1, 300),
        "livenessProbe": probe("/healthz", 10, 6),
        "volumeMounts": own_mounts(),
    }))
}

/// Init container that installs the files with owner and mode, which a volume of a Secret cannot have. Only
/// this container runs as root, and only if a file has a foreign owner.
pub(super) fn install_files(blueprint: &Blueprint<'_>, files: &[File]) -> Value {
    let mut args =
        vec!["install-files".to_owned(), format!("--from={SECRET_FILES_DIR}"), format!("--to={FILES_DIR}")];
    for file in files {
        let (user, group) = file.owner;
        args.push(format!("--file={}:{user}:{group}:{:o}", file.key, file.mode));
    }
    let mut container = container(json!({
        "name": "files",
        "image": blueprint.own_image,
        "args": args,
        "volumeMounts": [mount("secret-files", SECRET_FILES_DIR, true), mount("files", FILES_DIR, false)],
    }));
    if files.iter().any(|file| file.owner != (USER, USER)) {
        let security = &mut container["securityContext"];
        security["runAsNonRoot"] = json!(false);
        security["runAsUser"] = json!(0);
        security["capabilities"]["add"] = json!(["CHOWN", "FOWNER"]);
    }
    container
}

/// Adds what all containers have in common.
fn container(mut container: Value) -> Value {
    container["imagePullPolicy"] = json!("IfNotPresent");
    // The last log line of a failed program is its reason.
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    });
    container
}

fn mount(volume: &str, path: &str, read_only: bool) -> Value {
    json!({ "name": volume, "mountPath": path, "readOnly": read_only })
}

fn sub_path(mut mount: Value, path: &str) -> Value {
    mount["subPath"] = json!(path);
    mount
}

/// Writable folder: a machine's root file system is read-only.
fn scratch() -> Value {
    mount("tmp", "/tmp", false)
}

/// Mounts of our own programs.
fn own_mounts() -> Vec<Value> {
    vec![mount("machine", MACHINE_DIR, true), mount("state", STATE_DIR, false)]
}

/// Mounts of the files of the class.
fn file_mounts(files: &[File]) -> impl Iterator<Item = Value> {
    files.iter().map(|file| sub_path(mount("files", &file.path, true), &file.key))
}

/// Command of the containers that run as long as the machine, thousands of times: the small program.
fn machine_program() -> Value {
    json!([format!("/{MACHINE_PROGRAM}")])
}

fn program_args(command: &str, blueprint: &Blueprint<'_>) -> Vec<String> {
    vec![
        command.to_owned(),
        format!("--node={}", blueprint.id.node),
        format!("--machine-dir={MACHINE_DIR}"),
        format!("--state-dir={STATE_DIR}"),
        format!("--probe-port={PROBE_PORT}"),
    ]
}

fn probe(path: &str, period_seconds: u32, failure_threshold: u32) -> Value {
    json!({
        "httpGet": { "path": path, "port": PROBE_PORT },
        "periodSeconds": period_seconds,
        "failureThreshold": failure_threshold,
    })
}

/// Requests and limits of the class; by default those of kubemark's own templates.
fn resources(settings: &KubemarkMachine) -> Value {
    match &settings.resources {
        Some(resources) => json!(resources),
        None => json!({ "requests": { "cpu": "20m", "memory": "50Mi" }, "limits": { "cpu": "100m" } }),
    }
}

/// Adds the kubelet's version as a tag to an image without one.
pub(super) fn with_tag(image: &str, machine: &revision::ResolvedMachine) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let version = machine.provisioning.as_ref().and_then(|p| p.kubelet.as_ref()).map(|k| &k.version);
    match version {
        Some(version) if !last.contains([':', '@']) => format!("{image}:{version}"),
        _ => image.to_owned(),
    }
}
