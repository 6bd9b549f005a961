//! The containers of a machine's pod.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Probe,
        ResourceRequirements, SecurityContext,
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use kube_node_api::KubemarkMachine;
use kube_node_api::names::MACHINE_PROGRAM;
use kube_node_planner::revision;

use super::{Blueprint, CONTAINER, File, PROXY_ADDRESS, USER, volumes};

/// Port of /healthz and /readyz of our own programs.
const PROBE_PORT: i32 = 10_248;
/// Default requests and limits of a machine, from kubemark's own templates.
const REQUESTS: [(&str, &str); 2] = [("cpu", "20m"), ("memory", "50Mi")];
const LIMITS: [(&str, &str); 1] = [("cpu", "100m")];
/// Requests of a kubemark proxy; the class's resources are for kubemark.
const PROXY_REQUESTS: [(&str, &str); 2] = [("cpu", "5m"), ("memory", "10Mi")];

/// Container of the hollow kubelet from our own image.
pub(super) fn own(blueprint: &Blueprint<'_>, settings: &KubemarkMachine, files: &[File]) -> Container {
    let mut args = program("hollow-node", blueprint);
    args.extend(settings.extra_args.clone());
    Container {
        name: CONTAINER.to_owned(),
        image: Some(blueprint.own_image.to_owned()),
        command: Some(machine_program()),
        args: Some(args),
        // Address that the Node shows.
        env: Some(vec![EnvVar {
            name: "POD_IP".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "status.podIP".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        resources: Some(resources(settings)),
        startup_probe: Some(Probe { failure_threshold: Some(60), ..probe("/healthz") }),
        liveness_probe: Some(Probe {
            failure_threshold: Some(6),
            period_seconds: Some(10),
            ..probe("/healthz")
        }),
        readiness_probe: Some(Probe { period_seconds: Some(5), ..probe("/readyz") }),
        // The commands of the class need scratch space.
        volume_mounts: Some(
            [volumes::own_mounts(), vec![volumes::scratch()], volumes::file_mounts(files)].concat(),
        ),
        ..container()
    }
}

/// Container of an upstream kubemark. It reports to the kubemark proxy, which reports to the API server.
pub(super) fn upstream(
    blueprint: &Blueprint<'_>,
    settings: &KubemarkMachine,
    image: &str,
    files: &[File],
) -> Container {
    let machine = blueprint.machine;
    let amount = |name: &str| machine.capacity.get(name).map(|amount| format!("{name}={}", amount.0));
    // kubemark has flags for these three; the proxy reports the other resources of the class.
    let resources_of: Vec<String> =
        ["cpu", "memory", "ephemeral-storage"].into_iter().filter_map(amount).collect();
    let mut args = vec![
        "--morph=kubelet".to_owned(),
        format!("--name={}", blueprint.id.node),
        format!("--kubeconfig={}", volumes::PROXY_KUBECONFIG),
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
    let (command, args) = if commands.is_empty() {
        (vec!["/kubemark".to_owned()], args)
    } else {
        // The commands run in the container itself, so that their changes are there when the kubelet starts.
        let script = format!("set -e\n{}\nexec /kubemark \"$@\"\n", commands.join("\n"));
        (vec!["/bin/sh".to_owned(), "-c".to_owned(), script, "kubemark".to_owned()], args)
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(with_tag(image, machine)),
        command: Some(command),
        args: Some(args),
        resources: Some(resources(settings)),
        volume_mounts: Some([volumes::upstream_mounts(), volumes::file_mounts(files)].concat()),
        ..container()
    }
}

/// Sidecar with the kubemark proxy: up before kubemark starts, and until kubemark has ended.
pub(super) fn proxy(blueprint: &Blueprint<'_>) -> Container {
    let mut args = program("kubemark-proxy", blueprint);
    args.push(format!("--listen={PROXY_ADDRESS}"));
    Container {
        name: "kubemark-proxy".to_owned(),
        image: Some(blueprint.own_image.to_owned()),
        command: Some(machine_program()),
        args: Some(args),
        restart_policy: Some("Always".to_owned()),
        resources: Some(ResourceRequirements {
            requests: Some(amounts(&PROXY_REQUESTS)),
            ..ResourceRequirements::default()
        }),
        // kubemark starts once the proxy has the machine's identity.
        startup_probe: Some(Probe { failure_threshold: Some(300), ..probe("/readyz") }),
        liveness_probe: Some(Probe {
            failure_threshold: Some(6),
            period_seconds: Some(10),
            ..probe("/healthz")
        }),
        volume_mounts: Some(volumes::own_mounts()),
        ..container()
    }
}

/// Init container that installs the files with owner and mode, which a volume of a Secret cannot have. Only
/// this container runs as root, and only if a file has a foreign owner.
pub(super) fn carrier(blueprint: &Blueprint<'_>, files: &[File]) -> Container {
    let mut args = vec![
        "install-files".to_owned(),
        format!("--from={}", volumes::SECRET_FILES_DIR),
        format!("--to={}", volumes::FILES_DIR),
    ];
    for file in files {
        let (user, group) = file.owner;
        args.push(format!("--file={}:{user}:{group}:{:o}", file.key, file.mode));
    }
    let foreign = files.iter().any(|file| file.owner != (USER, USER));
    let security = SecurityContext {
        run_as_user: foreign.then_some(0),
        run_as_non_root: Some(!foreign),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: foreign.then(|| ["CHOWN", "FOWNER"].map(str::to_owned).to_vec()),
        }),
        ..confined()
    };
    Container {
        name: "files".to_owned(),
        image: Some(blueprint.own_image.to_owned()),
        args: Some(args),
        security_context: Some(security),
        volume_mounts: Some(volumes::carrier_mounts()),
        ..container()
    }
}

/// Common part of all containers.
fn container() -> Container {
    Container {
        image_pull_policy: Some("IfNotPresent".to_owned()),
        // The last log line of a failed program is its reason.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(confined()),
        ..Container::default()
    }
}

fn confined() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// Command of the containers that run as long as the machine, thousands of times: the small program.
fn machine_program() -> Vec<String> {
    vec![format!("/{}", MACHINE_PROGRAM)]
}

fn program(command: &str, blueprint: &Blueprint<'_>) -> Vec<String> {
    vec![
        command.to_owned(),
        format!("--node={}", blueprint.id.node),
        format!("--machine-dir={}", volumes::MACHINE_DIR),
        format!("--state-dir={}", volumes::STATE_DIR),
        format!("--probe-port={PROBE_PORT}"),
    ]
}

fn probe(path: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(PROBE_PORT),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(1),
        ..Probe::default()
    }
}

fn resources(settings: &KubemarkMachine) -> ResourceRequirements {
    settings.resources.clone().unwrap_or_else(|| ResourceRequirements {
        requests: Some(amounts(&REQUESTS)),
        limits: Some(amounts(&LIMITS)),
        ..ResourceRequirements::default()
    })
}

fn amounts(amounts: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
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
