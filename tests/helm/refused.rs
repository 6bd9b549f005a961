//! Values that do not fit are refused with a sentence that says which.

use crate::{
    program::{CHART, offline, said},
    render::render_chart,
};

#[test]
fn values_that_do_not_fit() {
    let rows: &[(&[&str], &str)] = &[
        // By the schema.
        (&["replica=2"], "additional properties 'replica' not allowed"),
        (&["fullnameOverride=a"], "additional properties 'fullnameOverride' not allowed"),
        (&["enabled=yes"], "at '/enabled': got string, want boolean"),
        (&["operator.replicas=2"], "at '/operator': additional properties 'replicas' not allowed"),
        (&["replicas=0"], "at '/replicas': minimum"),
        (&["replicas=many"], "at '/replicas': got string, want integer"),
        (&["image.tag=a b"], "at '/image/tag'"),
        (&["image.digest=sha256:12"], "at '/image/digest'"),
        (&["image.repository="], "at '/image/repository'"),
        (&["image.repository=registry:5000/kube-node:v1"], "at '/image/repository'"),
        (&["image.pullPolicy=Sometimes"], "at '/image/pullPolicy'"),
        (&["operator.adminPort=80"], "at '/operator/adminPort': minimum"),
        (&["operator.logFormat=xml"], "at '/operator/logFormat'"),
        (&["operator.extraArgs={-x}"], "at '/operator/extraArgs/0'"),
        (&["podCidrs.clusterCidr=fd00::/48"], "at '/podCidrs/clusterCidr'"),
        (&["podCidrs.nodeMaskSize=31"], "at '/podCidrs/nodeMaskSize': maximum"),
        (&["machines.namespace=A"], "at '/machines/namespace'"),
        (&["networkPolicy.apiServerPorts={0}"], "at '/networkPolicy/apiServerPorts/0': minimum"),
        (
            &["operator.extraEnv={OTEL_EXPORTER_OTLP_HEADERS}"],
            "at '/operator/extraEnv/0': got string, want object",
        ),
        (&["autoscaler.certificates.schedule=daily"], "at '/autoscaler/certificates/schedule'"),
        (&["machines.apiServer=http://192.0.2.1"], "at '/machines/apiServer'"),
        (&["autoscaler.certificates.source=None"], "at '/autoscaler/certificates/source'"),
        (&["leaderElection.leaseDuration=15"], "at '/leaderElection/leaseDuration'"),
        (&["uninstall.timeout=soon"], "at '/uninstall/timeout'"),
        (&["hollowHosts.Big.replicas=1"], "invalid propertyName 'Big'"),
        (&["hollowHosts.a23456789-123456789-123456789-123456.replicas=1"], "invalid propertyName"),
        (&["hollowHosts.big.replicas=-1"], "at '/hollowHosts/big/replicas': minimum"),
        (&["hollowHosts.big.hosts=2"], "at '/hollowHosts/big'"),
        (&["tracing.endpoint=collector:4317"], "at '/tracing/endpoint'"),
        (&["tracing.endpoint=http://collector"], "at '/tracing/endpoint'"),
        (&["tracing.endpoint=http://collector:4317", "tracing.percent=0"], "at '/tracing/percent': minimum"),
        // By each other.
        (
            &["leaderElection.enabled=false"],
            "replicas is 2 and leaderElection.enabled is false, so all of them would work at once: set replicas to 1, or let them elect a leader",
        ),
        (
            &["replicas=1", "leaderElection.enabled=false", "leaderElection.retryPeriod=2s"],
            "leaderElection.retryPeriod is set and leaderElection.enabled is false",
        ),
        (
            &["operator.podLabels.app\\.kubernetes\\.io/name=a"],
            "operator.podLabels has app.kubernetes.io/name, which the chart sets",
        ),
        (&["commonLabels.helm\\.sh/chart=a"], "commonLabels has helm.sh/chart, which the chart sets"),
        (&["operator.extraArgs={--machine-namespace=a}"], "operator.extraArgs has --machine-namespace"),
        (
            &["operator.extraArgs={--admin-address=:1}"],
            "operator.extraArgs has --admin-address, which the chart sets",
        ),
        (&["operator.extraArgs={--cluster-cidr=10.0.0.0/8}"], "operator.extraArgs has --cluster-cidr"),
        (&["operator.extraArgs={--autoscaler-plaintext}"], "operator.extraArgs has --autoscaler-plaintext"),
        (
            &["operator.extraArgs={--kubelet-ports=1-2}"],
            "operator.extraArgs has --kubelet-ports, which the chart sets: use the values under hollow.endpoints",
        ),
        (&["operator.extraArgs={--hollow-kubeconfig=/a}"], "operator.extraArgs has --hollow-kubeconfig"),
        (
            &["operator.extraEnv[0].name=RUST_LOG"],
            "operator.extraEnv has RUST_LOG, which the chart sets: leave it out, and use operator.logFilter",
        ),
        (
            &["serviceMonitor.labels.app\\.kubernetes\\.io/name=a"],
            "serviceMonitor.labels has app.kubernetes.io/name, which the chart sets",
        ),
        (
            &["networkPolicy.enabled=false", "hollow.endpoints.from[0].podSelector.matchLabels.a=b"],
            "hollow.endpoints.from are parts of the NetworkPolicy, and networkPolicy.enabled is false",
        ),
        (
            &["hollow.endpoints.enabled=false", "hollow.endpoints.tlsSecretName=own"],
            "hollow.endpoints has settings and hollow.endpoints.enabled is false",
        ),
        (
            &["hollow.endpoints.ports=29999-11000"],
            "hollow.endpoints.ports is 29999-11000: write a lower and a higher port, of 65535 at most",
        ),
        (&["hollow.endpoints.ports=11000-99999"], "hollow.endpoints.ports is 11000-99999"),
        (
            &["hollow.endpoints.ports=8000-9000"],
            "operator.adminPort is 8080, which is in hollow.endpoints.ports (8000-9000): choose a port outside",
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.port=12000"],
            "autoscaler.port is 12000, which is in hollow.endpoints.ports (11000-29999)",
        ),
        (&["autoscaler.options=true"], "autoscaler has settings and autoscaler.enabled is false"),
        (
            &["autoscaler.enabled=true", "autoscaler.port=8080"],
            "autoscaler.port and operator.adminPort are both 8080",
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.certificates.source=Secret"],
            "autoscaler.certificates.source is Secret: name the Secret",
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.certificates.secretName=own"],
            "autoscaler.certificates.secretName is for source Secret, and the source is Job",
        ),
        (
            &["autoscaler.enabled=true", "autoscaler.certificates.issuerRef.name=own"],
            "autoscaler.certificates.issuerRef is for source CertManager, and the source is Job",
        ),
        (
            &[
                "autoscaler.enabled=true",
                "autoscaler.certificates.source=CertManager",
                "autoscaler.certificates.issuerRef.kind=Issuer",
            ],
            "autoscaler.certificates.issuerRef has no name",
        ),
        (
            &[
                "autoscaler.enabled=true",
                "autoscaler.certificates.source=CertManager",
                "autoscaler.clientNamespace=kube-system",
            ],
            "autoscaler.clientNamespace is kube-system, and an Issuer serves its own namespace alone",
        ),
        (&["tracing.percent=10"], "tracing has settings and tracing.endpoint is empty: name a collector"),
        (
            &["tracing.endpoint=http://collector:4317", "tracing.tls.secretName=own"],
            "tracing.tls is for a collector at https://, and tracing.endpoint begins with http://",
        ),
        (
            &["tracing.endpoint=https://collector:4317"],
            "tracing.endpoint begins with https://, and the image has no CA certificates: name a Secret",
        ),
        (
            &["uninstall.hook=false", "uninstall.deleteNodes=true"],
            "uninstall.deleteNodes is what the hook does",
        ),
        (&["crds.install=false", "crds.keep=false"], "crds.keep is for CRDs that the chart installs"),
        (
            &["networkPolicy.enabled=false", "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b"],
            "networkPolicy.metricsFrom, autoscaler.from and hollow.endpoints.from are parts of the NetworkPolicy",
        ),
    ];
    for (set, sentence) in rows {
        let refused = render_chart(CHART, set).expect_err("it is refused");
        assert!(refused.contains(sentence), "{set:?}: {refused}");
    }
}

#[test]
fn namespaces_of_others() {
    for (namespace, set, sentence) in [
        (
            "kube-system",
            None,
            "the namespace is kube-system, which is Kubernetes' own: install with --namespace",
        ),
        (
            "a",
            Some("machines.namespace=a"),
            "machines.namespace is a, and machines need a namespace that is neither",
        ),
        (
            "a",
            Some("machines.namespace=kube-node-lease"),
            "machines.namespace is kube-node-lease, and machines need",
        ),
    ] {
        let set = set.map(|set| ["--set", set]);
        let mut args = vec!["template", "kube-node", CHART, "--namespace", namespace];
        args.extend(set.into_iter().flatten());
        let output = offline(&args);
        assert!(!output.status.success() && said(&output).contains(sentence), "{}", said(&output));
    }
}

#[test]
fn ports_that_nobody_listens_on_are_free() {
    for set in
        [&["autoscaler.port=12000"][..], &["hollow.endpoints.enabled=false", "operator.adminPort=12000"]]
    {
        render_chart(CHART, set).unwrap_or_else(|why| panic!("{set:?}: {why}"));
    }
}
