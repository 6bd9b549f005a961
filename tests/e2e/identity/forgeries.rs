//! Requests that are not what they say: none is approved, and each says why in its condition.

use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{
            CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
        },
        core::v1::{Pod, ServiceAccount},
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
    config::Kubeconfig,
};
use kube_node_api::{machine_identity::Account, names::MACHINE_NAMESPACE};
use machine_identity::token::{self, Token};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use super::{Stage, config_client, server_and_ca};
use kube_node_testing::{LONG, create, eventually};

/// A request, as honest as it can be unless a test changes it.
struct Forgery {
    name: String,
    groups: Vec<&'static str>,
    alternatives: Vec<SanType>,
    usages: Vec<&'static str>,
    seconds: Option<i32>,
    signer: &'static str,
}

impl Forgery {
    fn of(node: &str) -> Self {
        Self {
            name: format!("system:node:{node}"),
            groups: vec!["system:nodes"],
            alternatives: Vec::new(),
            usages: vec!["digital signature", "client auth"],
            seconds: Some(3600),
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
        }
    }

    fn request(self) -> CertificateSigningRequest {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, group) in kinds.into_iter().zip(self.groups) {
            params.distinguished_name.push(kind, group);
        }
        params.distinguished_name.push(DnType::CommonName, self.name);
        params.subject_alt_names = self.alternatives;
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some("forgery-".to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(self.usages.into_iter().map(str::to_owned).collect()),
                expiration_seconds: self.seconds,
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }
}

/// A request that asks for no more than the certificate of `node`.
pub(super) fn honest(node: &str) -> CertificateSigningRequest {
    Forgery::of(node).request()
}

/// Who shows a token of the machines' ServiceAccount that is bound to this.
async fn client_bound_to(admin: &Client, bound: Value) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "kubemark");
    let wanted = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [], "boundObjectRef": bound, "expirationSeconds": 600},
    });
    let params = PostParams::default();
    let made: Value =
        accounts.create_subresource("token", "kube-node-machine", &params, &wanted).await.unwrap();
    client_with(made["status"]["token"].as_str().unwrap()).await
}

async fn client_with(secret: &str) -> Client {
    let token = Token { secret: secret.to_owned().into(), expires: jiff::Timestamp::now() };
    let (server, ca) = server_and_ca();
    config_client(Kubeconfig::from_yaml(&token::bootstrap_kubeconfig(&server, &ca, &token)).unwrap()).await
}

async fn ask(client: &Client, forgery: Forgery) -> Result<String, kube::Error> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let made = api.create(&PostParams::default(), &forgery.request()).await?;
    Ok(made.metadata.name.unwrap())
}

/// Requests the certificate of a Node as the holder of a token that is bound to this UID. The API server takes no
/// token of a Node that was replaced, but a request made before may be decided on after. Made before, it could be
/// decided on by the approver of another test while there is no such Node.
async fn ask_as_bound_to(admin: &Client, node: &str, uid: &str) -> String {
    let csr = serde_json::to_vec(&Forgery::of(node).request()).unwrap();
    let request = http::Request::post("/apis/certificates.k8s.io/v1/certificatesigningrequests")
        .header("Content-Type", "application/json")
        .header("Impersonate-User", Account::Kubemark.user(MACHINE_NAMESPACE))
        .header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node)
        .header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-uid", uid);
    let made = admin.request::<CertificateSigningRequest>(request.body(csr).unwrap()).await.unwrap();
    made.metadata.name.unwrap()
}

impl Stage {
    /// Waits for the refusal of a request, and that nothing is granted; its reason.
    async fn denied(&self, name: &str) -> String {
        let csr = eventually(&format!("{name} is decided on"), LONG, async || {
            let csr = self.csrs.get(name).await.unwrap();
            let status = csr.status.as_ref()?;
            status.conditions.as_ref().filter(|said| !said.is_empty())?;
            Some(csr)
        })
        .await;
        let status = csr.status.unwrap();
        let CertificateSigningRequestCondition { type_, reason, message, .. } =
            status.conditions.unwrap().remove(0);
        assert_eq!(type_, "Denied", "{name}: {message:?}");
        assert!(status.certificate.is_none());
        assert!(message.is_some_and(|message| message.len() > 10));
        reason.unwrap()
    }
}

#[tokio::test]
async fn no_forged_request_is_approved() {
    let stage = Stage::new("forgery.example.com").await;
    stage.approve();
    let uid = stage.node("forged-1").await;
    stage.node("forged-2").await;
    let token = stage.token("forged-1", &uid).await;
    let client = client_with(secrecy::ExposeSecret::expose_secret(&token.secret)).await;
    let dns = || SanType::DnsName("kubernetes.default".try_into().unwrap());
    let own = || Forgery::of("forged-1");
    let forgeries = [
        ("OtherName", Forgery::of("forged-2")),
        ("OtherName", Forgery { name: "system:kube-controller-manager".to_owned(), ..own() }),
        ("OtherGroups", Forgery { groups: vec!["system:masters"], ..own() }),
        ("OtherGroups", Forgery { groups: vec!["system:nodes", "system:masters"], ..own() }),
        ("AlternativeNames", Forgery { alternatives: vec![dns()], ..own() }),
        ("OtherUsages", Forgery { usages: vec!["digital signature", "server auth"], ..own() }),
        ("OtherUsages", Forgery { usages: vec!["digital signature", "client auth", "any"], ..own() }),
        ("TooLong", Forgery { seconds: Some(86_400), ..own() }),
        ("TooLong", Forgery { seconds: None, ..own() }),
    ];
    for (reason, forgery) in forgeries {
        let request = ask(&client, forgery).await.unwrap();
        assert_eq!(stage.denied(&request).await, reason, "{request}");
    }
    // Another signer, whose certificates nobody here decides on, cannot even be asked.
    let other = Forgery { signer: "kubernetes.io/kube-apiserver-client", ..own() };
    let refused = ask(&client, other).await.unwrap_err();
    assert!(refused.to_string().contains("of no other"), "{refused}");
    stage.remove("forged-1").await;
    stage.remove("forged-2").await;
}

#[tokio::test]
async fn no_token_speaks_for_a_node_that_it_is_not_bound_to() {
    let stage = Stage::new("bound.example.com").await;
    let uid = stage.node("bound-1").await;
    stage.bare_node("bound-2").await;

    let unbound = client_bound_to(&stage.admin, Value::Null).await;
    let not_bound = ask(&unbound, Forgery::of("bound-1")).await.unwrap();
    // A pod's token carries the Node that the pod runs on.
    let pods: Api<Pod> = Api::namespaced(stage.admin.clone(), "kubemark");
    let spec = json!({
        "nodeName": "bound-1", "serviceAccountName": "kube-node-machine",
        "containers": [{"name": "main", "image": "example.com/main:1"}],
    });
    let pod = create(&pods, json!({"metadata": {"name": "bound"}, "spec": spec})).await.unwrap();
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "bound", "uid": pod.metadata.uid});
    let of_pod = client_bound_to(&stage.admin, reference).await;
    let of_pod = ask(&of_pod, Forgery::of("bound-1")).await.unwrap();
    // A Node without a machine, one that is gone, one that came back as another.
    let reference =
        |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
    let empty = stage.nodes.get("bound-2").await.unwrap().metadata.uid.unwrap();
    let no_machine = client_bound_to(&stage.admin, reference("bound-2", &empty)).await;
    let no_machine = ask(&no_machine, Forgery::of("bound-2")).await.unwrap();
    let gone_uid = stage.node("bound-3").await;
    let gone = client_bound_to(&stage.admin, reference("bound-3", &gone_uid)).await;
    let gone = ask(&gone, Forgery::of("bound-3")).await.unwrap();
    stage.remove("bound-3").await;
    stage.remove("bound-1").await;
    stage.node("bound-1").await;
    let replaced = ask_as_bound_to(&stage.admin, "bound-1", &uid).await;

    stage.approve();
    for (name, reason) in [
        (not_bound, "TokenNotBound"),
        (of_pod, "TokenOfPod"),
        (no_machine, "NoMachine"),
        (gone, "NodeNotFound"),
        (replaced, "NodeReplaced"),
    ] {
        assert_eq!(stage.denied(&name).await, reason, "{name}");
    }
    let _ = pods.delete("bound", &DeleteParams::default().grace_period(0)).await;
    stage.remove("bound-1").await;
    stage.remove("bound-2").await;
}
