//! Looks reach a collector as traces, where the environment names one, and nobody waits for one that is away.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use local_cluster::pki::AutoscalerCertificates;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span},
};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Request, Response, Status,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, TestCluster, class_spec, create, eventually, free_port,
    operator::{OperatorIdentity, OperatorProcess},
    test_target,
};

/// Somebody who takes spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ResourceSpans>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Takes them at this port, from those alone that have a certificate where `certificates` says so.
    fn listen(&self, port: u16, certificates: Option<&AutoscalerCertificates>) -> AbortOnDropHandle<()> {
        let mut server = Server::builder();
        if let Some(all) = certificates {
            let own = Identity::from_pem(&all.server.certificate, &all.server.key);
            let tls = ServerTlsConfig::new().identity(own).client_ca_root(Certificate::from_pem(&all.ca));
            server = server.tls_config(tls).unwrap();
        }
        let serving = server
            .add_service(TraceServiceServer::new(self.clone()))
            .serve((IpAddr::from(Ipv4Addr::LOCALHOST), port).into());
        AbortOnDropHandle::new(tokio::spawn(async { serving.await.unwrap() }))
    }

    /// All spans, each with what is said of the process that it is of.
    fn spans(&self) -> Vec<(Span, Vec<KeyValue>)> {
        let all = self.0.lock().unwrap().clone();
        let of_process = |of: ResourceSpans| {
            let process = of.resource.unwrap_or_default().attributes;
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |span| (span, process.clone())).collect::<Vec<_>>()
        };
        all.into_iter().flat_map(of_process).collect()
    }
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> &'a str {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        _ => "",
    }
}

/// What the operator is told of its collector, and the files that it is told of.
struct OtlpSettings {
    variables: Vec<(&'static str, String)>,
    folder: PathBuf,
}

impl OtlpSettings {
    fn new(cluster: &TestCluster, port: u16, certificates: Option<&AutoscalerCertificates>) -> Self {
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let mut settings = Self {
            variables: vec![
                ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{scheme}://127.0.0.1:{port}")),
                ("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=operator-0".to_owned()),
                // Soon, instead of every 5 s.
                ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
            ],
            folder: cluster.dir.join("collector"),
        };
        if let Some(all) = certificates {
            fs::create_dir_all(&settings.folder).unwrap();
            settings.file("OTEL_EXPORTER_OTLP_CERTIFICATE", &all.ca);
            settings.file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &all.client.certificate);
            settings.file("OTEL_EXPORTER_OTLP_CLIENT_KEY", &all.client.key);
        }
        settings
    }

    fn file(&mut self, variable: &'static str, content: &str) {
        let path = self.folder.join(variable);
        fs::write(&path, content).unwrap();
        self.variables.push((variable, path.display().to_string()));
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

#[tokio::test]
async fn a_look_is_a_trace() {
    let cluster = TemporaryCluster::start(test_target!(), "traces", &["--without-operator"]);
    let own = Fixture::of(cluster.client().await, "observability-traces");
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class_spec()})).await.unwrap();
    own.create_set(0, json!({})).await;
    let certificates = AutoscalerCertificates::make(&["127.0.0.1"]).unwrap();

    comes_back_while_it_works(&cluster, &own, 0, None).await;
    comes_back_while_it_works(&cluster, &own, 10, Some(&certificates)).await;
}

/// The operator finds nobody who would take its spans, and somebody later. There are so many Nodes `before`.
async fn comes_back_while_it_works(
    cluster: &TestCluster,
    own: &Fixture,
    before: usize,
    certificates: Option<&AutoscalerCertificates>,
) {
    let port = free_port();
    let settings = OtlpSettings::new(cluster, port, certificates);
    let name = format!("traced-{before}");
    let mut operator = OperatorProcess::start_in(
        cluster,
        &name,
        OperatorIdentity::ServiceAccounts,
        &[],
        &settings.variables(),
    );
    operator.leads().await;
    own.patch_set(json!({"spec": {"replicas": before + 5}})).await;
    own.settled(before + 5).await;
    let count = |sentence: &str| operator.said().matches(sentence).count();
    eventually("it says that spans are lost", LONG, async || {
        (count("traces cannot be exported") > 0).then_some(())
    })
    .await;

    let collector = Collector::default();
    let _listening = collector.listen(port, certificates);
    // Each time there is something to export again.
    let mut more = 0;
    eventually("it says that they arrive", LONG, async || {
        more = 1 - more;
        own.patch_set(json!({"spec": {"replicas": before + 5 + more}})).await;
        (count("traces are exported again") == 1).then_some(())
    })
    .await;
    own.patch_set(json!({"spec": {"replicas": before + 10}})).await;
    own.settled(before + 10).await;

    let (reconcile, process) = eventually("a Node was created in a look at its set", LONG, async || {
        let spans = collector.spans();
        spans.iter().find_map(|(call, _)| {
            let creates = text(&call.attributes, "action").starts_with("create Node observability-traces-");
            let is_of = |reconcile: &Span| {
                reconcile.span_id == call.parent_span_id && reconcile.trace_id == call.trace_id
            };
            creates.then(|| spans.iter().find(|(reconcile, _)| is_of(reconcile)).cloned()).flatten()
        })
    })
    .await;
    assert_eq!(reconcile.name, "reconcile");
    assert!(reconcile.parent_span_id.is_empty(), "a trace begins with it");
    assert_eq!(text(&reconcile.attributes, "controller"), "nodeset");
    assert_eq!(text(&reconcile.attributes, "object"), own.name);
    let id = text(&reconcile.attributes, "id");
    assert!(id.len() == 16 && id.chars().all(|c| c.is_ascii_hexdigit()), "{reconcile:?}");
    assert_eq!(text(&process, "service.name"), "kube-node-operator");
    assert_eq!(text(&process, "service.version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&process, "k8s.pod.name"), "operator-0");
    assert_eq!(count("traces cannot be exported"), 1, "{}", operator.said());

    operator.ends_in_good_order().await;
    assert!(!operator.said().contains("the last traces are lost"), "{}", operator.said());
}

#[test]
fn a_collector_that_cannot_be_meant_is_an_error() {
    for (variable, value, said) in [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/protobuf",
            "OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf: write grpc",
        ),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://not a url", "cannot export traces as the variables"),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/nowhere",
            "cannot read /nowhere, which OTEL_EXPORTER_OTLP_CERTIFICATE",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command.args(["operator", "--kubeconfig=/nowhere"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1").env(variable, value);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{variable}={value}: {text}");
    }
}
