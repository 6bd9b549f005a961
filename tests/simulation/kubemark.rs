//! The cluster that hosts kubemark machines, and the signer of their certificates. Each pod of a machine asks for its
//! certificate, and then runs the hollow kubelet for its Node, on a way to the API server of its own.
//!
//! Inputs: the pods of the machines' namespace; certificate requests. Outputs: their statuses, and the requests of the
//! machines. Invariants: a machine runs only while its pod is there, and only with a certificate; only what the operator
//! has approved is signed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use hollow_kubelet::{Hollow, MachineSpec, RESTART};
use http::Method;
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::watcher,
};
use kube_ext::environment::{self, Environment, within};
use kube_node_api::{
    machine_files::{MachineDescription, MachineSettings},
    machine_identity::{Account, GROUP, LIFETIME_MAX, SIGNER, USAGES, USER_PREFIX},
    names::{ANNOTATION_MACHINE, ANNOTATION_SETTINGS, LABEL_NODE_UID, MACHINE_NAMESPACE},
};
use kube_node_cache::{Cache, NodeView, PodView, run_protobuf};
use kube_node_testing::{
    api_server::{ApiServer, Random},
    simulated_time::SimulatedTime,
};
use prometheus::Registry;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    network::Network,
    objects::name,
    others::{Others, is_leaving},
    process::{Cluster, Host},
};

/// Host of all pods of machines, which is no Node of the set-up.
const HOST: &str = "hosting-cluster";
/// Longest time for which an image is pulled.
const PULL: u64 = 6;
/// Time between two attempts of a machine to get a certificate.
const RETRY: Duration = Duration::from_secs(2);
/// Key of all requests: nobody uses the certificates.
static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());

/// The hosting cluster.
pub struct HostingCluster {
    cluster: Cluster,
    draws: Random,
    /// Pods with their machines, by UID.
    machines: BTreeMap<String, Machine>,
    /// Number of machines that have been started.
    started: u64,
    /// When the last of them was started.
    last_start: Option<Instant>,
}

/// A pod, and the machine in it.
struct Machine {
    /// When the container is started next.
    starts: Instant,
    starts_so_far: u64,
    runs: Option<(Network, AbortOnDropHandle<()>)>,
}

impl Machine {
    fn stop(&mut self) {
        if let Some((network, _)) = self.runs.take() {
            network.kill();
        }
    }
}

/// Pods of machines.
pub fn machine_pods(server: &ApiServer) -> Vec<Arc<Value>> {
    let pods = server.objects("", "pods").into_iter();
    pods.filter(|pod| pod["metadata"]["namespace"] == MACHINE_NAMESPACE).collect()
}

/// The pod of the n-th machine is deleted by force, or ends.
pub fn lose_machine(others: &Others, server: &ApiServer, n: usize, ends: bool) {
    let pods = machine_pods(server);
    let Some(pod) = pods.get(n % pods.len().max(1)) else { return };
    if ends {
        let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        others.call(Method::PATCH, &format!("{}/status", path(pod)), &json!({ "status": status }));
    } else {
        others.call(Method::DELETE, &path(pod), &json!({ "gracePeriodSeconds": 0 }));
    }
}

fn path(pod: &Value) -> String {
    format!("/api/v1/namespaces/{MACHINE_NAMESPACE}/pods/{}", name(pod))
}

impl HostingCluster {
    pub fn new(cluster: Cluster) -> Self {
        let draws = Random::new(cluster.seed.rotate_left(8) ^ 0x4057);
        Self { cluster, draws, machines: BTreeMap::new(), started: 0, last_start: None }
    }

    /// Returns true if a machine was started within this time.
    pub fn has_started_within(&self, time: Duration) -> bool {
        self.last_start.is_some_and(|at| at.elapsed() < time)
    }

    /// One second's work of its kubelets, and of the signer.
    pub fn work(&mut self, others: &Others) {
        sign(others, &self.cluster.server);
        let pods = machine_pods(&self.cluster.server);
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let present: BTreeSet<String> = pods.iter().map(|pod| uid(pod)).collect();
        self.machines.retain(|uid, machine| {
            let stays = present.contains(uid);
            if !stays {
                machine.stop();
            }
            stays
        });
        for pod in pods {
            let starts = Instant::now() + Duration::from_secs(self.draws.number() % PULL);
            let machine =
                self.machines.entry(uid(&pod)).or_insert(Machine { starts, starts_so_far: 0, runs: None });
            if machine.runs.take_if(|(network, _)| network.is_dead()).is_some() {
                machine.starts = starts;
            }
            let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
            if has_ended || is_leaving(&pod) {
                machine.stop();
            }
            if is_leaving(&pod) {
                others.call(Method::DELETE, &path(&pod), &json!({ "gracePeriodSeconds": 0 }));
            } else if pod["spec"]["nodeName"].is_null() {
                others.call(Method::PATCH, &path(&pod), &json!({ "spec": { "nodeName": HOST } }));
            } else if !has_ended && machine.runs.is_none() && machine.starts <= Instant::now() {
                let running =
                    json!({ "running": { "startedAt": environment::now().strftime("%FT%TZ").to_string() } });
                let container = json!({
                    "name": "hollow-kubelet", "image": "a", "imageID": "", "ready": true, "state": running,
                    "restartCount": machine.starts_so_far,
                });
                let status = json!({ "phase": "Running", "containerStatuses": [container] });
                others.call(Method::PATCH, &format!("{}/status", path(&pod)), &json!({ "status": status }));
                self.started += 1;
                self.last_start = Some(Instant::now());
                machine.starts_so_far += 1;
                machine.runs = Some(start(&self.cluster, &pod, self.started));
            }
        }
    }
}

/// Starts the machine of a pod.
fn start(cluster: &Cluster, pod: &Value, number: u64) -> (Network, AbortOnDropHandle<()>) {
    let Cluster { seed, server, checks, faults, begun, .. } = cluster.clone();
    let process = format!("machine-{number}");
    let network = Network::new(server.clone(), Arc::clone(&checks), faults, Arc::<Host>::default(), process);
    let client = Client::new(network.clone(), "default");
    let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(seed ^ number.rotate_left(20)).begun(begun));
    let text = |annotation: &str| pod["metadata"]["annotations"][annotation].as_str().unwrap_or_default();
    let description: MachineDescription = serde_json::from_str(text(ANNOTATION_MACHINE)).unwrap();
    let settings: MachineSettings = serde_json::from_str(text(ANNOTATION_SETTINGS)).unwrap();
    let node_uid = pod["metadata"]["labels"][LABEL_NODE_UID].as_str().unwrap_or_default();
    assert_eq!(node_uid, description.uid, "the pod's label names the Node of its machine");
    let pod = name(pod);
    let work = async move {
        obtain_certificate(&client, &description).await;
        run(client, description, settings, (number, pod), &server).await;
    };
    (network, AbortOnDropHandle::new(environment::spawn(within(time, work))))
}

/// Asks for a certificate until there is one.
async fn obtain_certificate(client: &Client, machine: &MachineDescription) {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = certificate_request(machine);
    loop {
        let Ok(made) = api.create(&PostParams::default(), &request).await else {
            sleep(RETRY).await;
            continue;
        };
        let name = made.metadata.name.unwrap();
        loop {
            sleep(RETRY).await;
            // A request that is denied, or lost, is followed by another one.
            let Ok(csr) = api.get(&name).await else { continue };
            let status = csr.status.unwrap_or_default();
            if status.certificate.is_some() {
                return;
            }
            if status.conditions.iter().flatten().any(|condition| condition.type_ == "Denied") {
                break;
            }
        }
    }
}

/// The request, with what the API server adds from the token.
fn certificate_request(machine: &MachineDescription) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, GROUP);
    params.distinguished_name.push(DnType::CommonName, format!("{USER_PREFIX}{}", machine.node));
    let pem = params.serialize_request(&*KEY).unwrap().pem().unwrap();
    let spec = json!({
        "request": ByteString(pem.into_bytes()),
        "signerName": SIGNER,
        "usages": USAGES,
        "expirationSeconds": LIFETIME_MAX.as_secs(),
        "username": Account::Kubemark.user(MACHINE_NAMESPACE),
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "extra": {
            "authentication.kubernetes.io/node-name": [machine.node],
            "authentication.kubernetes.io/node-uid": [machine.uid],
        },
    });
    let metadata = ObjectMeta { generate_name: Some(format!("{}-", machine.node)), ..ObjectMeta::default() };
    CertificateSigningRequest { metadata, spec: serde_json::from_value(spec).unwrap(), status: None }
}

/// Signs the requests that are approved.
fn sign(others: &Others, server: &ApiServer) {
    for csr in server.objects("certificates.k8s.io", "certificatesigningrequests") {
        let conditions = csr["status"]["conditions"].as_array().into_iter().flatten();
        let is_approved = conditions.into_iter().any(|one| one["type"] == "Approved");
        if is_approved && csr["status"]["certificate"].is_null() {
            let path =
                format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{}/status", name(&csr));
            let status = json!({ "status": { "certificate": ByteString(b"a certificate".to_vec()) } });
            others.call(Method::PATCH, &path, &status);
        }
    }
}

/// Runs a machine as `hollow-node` does: it sees its own Node and its own pods.
async fn run(
    client: Client,
    description: MachineDescription,
    settings: MachineSettings,
    (number, pod): (u64, String),
    server: &ApiServer,
) {
    let (nodes, pods): (Arc<Cache<NodeView>>, Arc<Cache<PodView>>) = <_>::default();
    let (hollow, kubelets) = Hollow::new(client.clone(), &nodes, &pods, RESTART, &Registry::new()).unwrap();
    let (node, uid) = (description.node.clone(), description.uid.clone());
    let address = Ipv4Addr::from(0x0a40_0000 + u32::try_from(number).unwrap());
    hollow.create(MachineSpec::new(description, Some(address), settings.clone()), None);
    let own_node = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let own_pods = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    // The kubelet of the host brings new settings into the pod.
    let follow = async {
        let mut last = settings;
        loop {
            sleep(Duration::from_secs(1)).await;
            let own = server.object("", "pods", Some(MACHINE_NAMESPACE), &pod);
            let text =
                own.as_ref().and_then(|pod| pod["metadata"]["annotations"][ANNOTATION_SETTINGS].as_str());
            let Some(settings) = text.and_then(|text| serde_json::from_str(text).ok()) else { continue };
            if settings != last {
                hollow.update(&uid, MachineSettings::clone(&settings));
                last = settings;
            }
        }
    };
    tokio::select! {
        biased;
        () = kubelets.run(CancellationToken::new()) => {}
        _ = run_protobuf(client.clone(), own_node, nodes) => {}
        _ = run_protobuf(client.clone(), own_pods, pods) => {}
        () = follow => {}
    }
}
