use serde_json::json;

use super::{containers::with_tag, *};
use k8s_openapi::api::core::v1::VolumeMount;

fn machine(kubemark: &serde_json::Value) -> revision::ResolvedMachine {
    let class = serde_json::from_value(json!({
        "nodeController": "kubemark",
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "30", "example.com/gpu": "1"},
        "provisioning": {"kubelet": {"version": "v1.36.3"}, "commands": ["echo a", "echo b"]},
        "kubemark": kubemark
    }));
    revision::ResolvedMachine::resolve(&class.unwrap(), None)
}

fn made(machine: &revision::ResolvedMachine, files: &[File]) -> Pod {
    let id = MachineId { uid: "1f2e3d4c-0000-4000-8000-000000000000".into(), node: "hollow-abc".into() };
    let blueprint = Blueprint {
        id: &id,
        cluster: "c0ffee",
        machine,
        own_image: "localhost/kube-node:1",
        shape: "{}",
        settings: "{}",
    };
    let manifest = manifest(&blueprint, files);
    let pod = pod(&blueprint, files).unwrap();
    let mut understood = serde_json::to_value(&pod).unwrap();
    for key in ["apiVersion", "kind"] {
        understood.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(understood, manifest, "the types of the API know each field");
    pod
}

#[test]
fn a_machine_of_our_own_image_is_one_container() {
    let pod = made(&machine(&json!({})), &[]);
    assert_eq!(pod.metadata.name.as_deref(), Some("hollow-abc-1f2e3d4c"));
    assert!(pod.metadata.owner_references.is_none());
    let spec = pod.spec.unwrap();
    assert!(spec.init_containers.unwrap().is_empty());
    let [main] = spec.containers.as_slice() else { panic!() };
    assert_eq!(main.command.as_ref().unwrap(), &["/kube-node-machine"]);
    assert_eq!(main.args.as_ref().unwrap()[..2], ["hollow-node", "--node=hollow-abc"]);
    let resources = main.resources.as_ref().unwrap();
    assert_eq!(resources.requests.as_ref().unwrap()["memory"].0, "50Mi");
    assert_eq!(resources.limits.as_ref().unwrap()["cpu"].0, "100m");
}

#[test]
fn upstream_has_a_kubemark_proxy_and_no_credential() {
    let pod = made(&machine(&json!({"image": "registry.example.com:5000/kubemark"})), &[]);
    let spec = pod.spec.unwrap();
    let proxies = spec.init_containers.unwrap();
    assert_eq!(
        (proxies[0].name.as_str(), proxies[0].restart_policy.as_deref()),
        ("kubemark-proxy", Some("Always"))
    );
    assert_eq!(proxies[0].command.as_ref().unwrap(), &["/kube-node-machine"]);
    let main = &spec.containers[0];
    assert_eq!(main.image.as_deref(), Some("registry.example.com:5000/kubemark:v1.36.3"));
    let script = &main.command.as_ref().unwrap()[2];
    assert!(script.contains("echo a\necho b\nexec /kubemark"), "{script}");
    let args = main.args.as_ref().unwrap();
    assert!(args.contains(&"--extended-resources=cpu=4,memory=16Gi".to_owned()), "{args:?}");
    assert!(args.contains(&"--max-pods=30".to_owned()));
    let mounts = main.volume_mounts.as_ref().unwrap();
    let secret = |mount: &&VolumeMount| {
        mount.name == "state" || (mount.name == "machine" && mount.sub_path.as_deref() != Some("kubeconfig"))
    };
    assert_eq!(mounts.iter().find(secret), None, "token and key are the proxy's alone");
}

#[test]
fn an_image_with_a_tag_or_digest_keeps_it() {
    let machine = machine(&json!({}));
    assert_eq!(with_tag("a/b:v1", &machine), "a/b:v1");
    assert_eq!(with_tag("a/b@sha256:0", &machine), "a/b@sha256:0");
    assert_eq!(with_tag("host:5000/b", &machine), "host:5000/b:v1.36.3");
}

#[test]
fn nothing_is_privileged_and_root_only_where_a_file_asks() {
    let file = |owner| File { key: "file-0".into(), path: "/etc/a".into(), mode: 0o640, owner };
    for (owner, root) in [((USER, USER), false), ((0, 0), true)] {
        let pod = made(&machine(&json!({"image": "i:1"})), &[file(owner)]);
        let spec = pod.spec.unwrap();
        let pod_context = spec.security_context.unwrap();
        assert_eq!((pod_context.run_as_user, pod_context.run_as_non_root), (Some(USER), Some(true)));
        for container in spec.init_containers.unwrap().iter().chain(&spec.containers) {
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(context.privileged, None);
            assert_eq!(context.read_only_root_filesystem, Some(true));
            assert_eq!(context.capabilities.as_ref().unwrap().drop.as_ref().unwrap(), &["ALL"]);
            assert_eq!(
                context.run_as_user == Some(0),
                root && container.name == "files",
                "{}",
                container.name
            );
        }
    }
}

#[test]
fn it_never_runs_on_a_hollow_node_whatever_else_is_wished() {
    let wish = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    ]}}}});
    for kubemark in [json!({}), wish] {
        let affinity = made(&machine(&kubemark), &[]).spec.unwrap().affinity.unwrap();
        let node = affinity.node_affinity.unwrap();
        let terms = node.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
        assert!(!terms.is_empty());
        for term in terms {
            let last = term.match_expressions.unwrap().pop().unwrap();
            assert_eq!((last.key.as_str(), last.operator.as_str()), (names::LABEL_NODECLASS, "DoesNotExist"));
        }
    }
}

#[test]
fn the_name_is_the_nodes_and_of_one_life() {
    let id = |uid: &str| MachineId { uid: uid.into(), node: "n".into() };
    assert_ne!(name(&id("aaaaaaaa-1")), name(&id("bbbbbbbb-1")));
    assert_eq!(name(&id("1f2e3d4c-5b6a")), "n-1f2e3d4c");
}
