{{/* Checks of values that contradict each other and of the cluster. Each message is one sentence with the remedy. Bounds of single
values are in values.schema.json. */}}

{{- define "kube-node.check" -}}
{{- include "kube-node.check.cluster" . -}}
{{- include "kube-node.check.operator" . -}}
{{- include "kube-node.check.autoscaler" . -}}
{{- include "kube-node.check.tracing" . -}}
{{- include "kube-node.check.rest" . -}}
{{- end }}

{{/* The release that an object belongs to, in words; nothing for one of nobody's. */}}
{{- define "kube-node.owner" -}}
{{- $annotations := dig "metadata" "annotations" dict (. | default dict) -}}
{{- with get $annotations "meta.helm.sh/release-name" -}}
release {{ . }} in namespace {{ get $annotations "meta.helm.sh/release-namespace" }}
{{- end -}}
{{- end }}

{{- define "kube-node.check.cluster" -}}
{{- $own := printf "release %s in namespace %s" .Release.Name .Release.Namespace -}}
{{- $owner := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "kube-node-operator" | include "kube-node.owner" -}}
{{- if and $owner (ne $owner $own) -}}
{{- fail (printf "kube-node is in this cluster already, as %s, and two would fight over its nodes: upgrade or uninstall that one" $owner) -}}
{{- end -}}
{{- $taken := list "kube-system" "kube-public" "kube-node-lease" -}}
{{- if has .Release.Namespace $taken -}}
{{- fail (printf "the namespace is %s, which is Kubernetes' own: install with --namespace kube-node-system --create-namespace, or into another namespace of yours" .Release.Namespace) -}}
{{- end -}}
{{- $machines := .Values.machines.namespace -}}
{{- if has $machines (append $taken .Release.Namespace) -}}
{{- fail (printf "machines.namespace is %s, and machines need a namespace that is neither the release's nor Kubernetes' own: name another one" $machines) -}}
{{- end -}}
{{- $there := lookup "v1" "Namespace" "" $machines -}}
{{- if and .Values.machines.createNamespace $there (ne (include "kube-node.owner" $there) $own) -}}
{{- fail (printf "namespace %s is there already, and an uninstall would delete it: name another one in machines.namespace, or set machines.createNamespace to false to use it" $machines) -}}
{{- end -}}
{{- $isKept := eq (dig "metadata" "annotations" "helm.sh/resource-policy" "" ($there | default dict)) "keep" -}}
{{- if and (not .Values.machines.createNamespace) (eq (include "kube-node.owner" $there) $own) (not $isKept) -}}
{{- fail (printf "machines.createNamespace is false, and namespace %s is of this release: helm would delete it with all machines; first let it stay (kubectl annotate namespace %s helm.sh/resource-policy=keep), or leave createNamespace true" $machines $machines) -}}
{{- end -}}
{{- end }}

{{- define "kube-node.check.operator" -}}
{{- with .Values.leaderElection -}}
{{- if and (not .enabled) (gt (int $.Values.replicas) 1) -}}
{{- fail (printf "replicas is %d and leaderElection.enabled is false, so all of them would work at once: set replicas to 1, or let them elect a leader" (int $.Values.replicas)) -}}
{{- end -}}
{{- range $name := list "leaseDuration" "renewDeadline" "retryPeriod" -}}
{{- if and (get $.Values.leaderElection $name) (not $.Values.leaderElection.enabled) -}}
{{- fail (printf "leaderElection.%s is set and leaderElection.enabled is false: leave one of them out" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $all := dict "operator.podLabels" .Values.operator.podLabels "commonLabels" .Values.commonLabels "serviceMonitor.labels" .Values.serviceMonitor.labels -}}
{{- $all = merge $all (dict "prometheusRule.labels" .Values.prometheusRule.labels "dashboards.labels" .Values.dashboards.labels) -}}
{{- range $value, $labels := $all -}}
{{- range $label, $_ := $labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (hasPrefix "helm.sh/" $label) -}}
{{- fail (printf "%s has %s, which the chart sets: leave it out" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.operator.extraEnv -}}
{{- if has .name (list "POD_NAMESPACE" "POD_NAME" "POD_IP" "RUST_LOG") -}}
{{- fail (printf "operator.extraEnv has %s, which the chart sets: leave it out%s" .name (eq .name "RUST_LOG" | ternary ", and use operator.logFilter" "")) -}}
{{- end -}}
{{- end -}}
{{- range .Values.operator.extraArgs -}}
{{- $flag := . | splitList "=" | first -}}
{{- if has $flag (list "--namespace" "--admin-address" "--log-format" "--machine-image" "--machine-namespace" "--machine-api-server" "--provider-id-prefix" "--hollow-service-account" "--hollow-kubeconfig" "--cluster-cidr" "--node-cidr-mask-size") -}}
{{- fail (printf "operator.extraArgs has %s, which the chart sets: use the value for it" $flag) -}}
{{- end -}}
{{- if or (hasPrefix "--autoscaler-" $flag) (hasPrefix "--leader-elect" $flag) -}}
{{- fail (printf "operator.extraArgs has %s, which the chart sets: use the values under autoscaler and leaderElection" $flag) -}}
{{- end -}}
{{- if hasPrefix "--kubelet-" $flag -}}
{{- fail (printf "operator.extraArgs has %s, which the chart sets: use the values under hollow.endpoints" $flag) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kube-node.check.autoscaler" -}}
{{- $autoscaler := .Values.autoscaler -}}
{{- with $autoscaler.certificates -}}
{{- if not $autoscaler.enabled -}}
{{- if or $autoscaler.options $autoscaler.clientNamespace $autoscaler.from .secretName .issuerRef -}}
{{- fail "autoscaler has settings and autoscaler.enabled is false: set it to true, or leave them out" -}}
{{- end -}}
{{- else -}}
{{- if eq (int $autoscaler.port) (int $.Values.operator.adminPort) -}}
{{- fail (printf "autoscaler.port and operator.adminPort are both %d: choose two ports" (int $autoscaler.port)) -}}
{{- end -}}
{{- if and (eq .source "Secret") (not .secretName) -}}
{{- fail "autoscaler.certificates.source is Secret: name the Secret with tls.crt, tls.key and ca.crt in autoscaler.certificates.secretName" -}}
{{- end -}}
{{- if and .secretName (ne .source "Secret") -}}
{{- fail (printf "autoscaler.certificates.secretName is for source Secret, and the source is %s: leave one of them out" .source) -}}
{{- end -}}
{{- if and .issuerRef (ne .source "CertManager") -}}
{{- fail (printf "autoscaler.certificates.issuerRef is for source CertManager, and the source is %s: leave one of them out" .source) -}}
{{- end -}}
{{- if and .issuerRef (not .issuerRef.name) -}}
{{- fail "autoscaler.certificates.issuerRef has no name: name the issuer, or leave it out to have one made" -}}
{{- end -}}
{{- if and (eq .source "CertManager") (ne (include "kube-node.autoscaler.client-namespace" $) $.Release.Namespace) (ne (.issuerRef.kind | default "Issuer") "ClusterIssuer") -}}
{{- fail (printf "autoscaler.clientNamespace is %s, and an Issuer serves its own namespace alone: name a ClusterIssuer in autoscaler.certificates.issuerRef, or run cluster-autoscaler in %s" $autoscaler.clientNamespace $.Release.Namespace) -}}
{{- end -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- if and (eq .source "CertManager") (not ($.Capabilities.APIVersions.Has "cert-manager.io/v1")) -}}
{{- fail "autoscaler.certificates.source is CertManager, and this cluster has no cert-manager: install it, or use the source Job" -}}
{{- end -}}
{{- if eq .source "Secret" -}}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace .secretName | default dict -}}
{{- range $key := list "tls.crt" "tls.key" "ca.crt" -}}
{{- if not (dig "data" $key "" $secret) -}}
{{- fail (printf "there is no %s in Secret %s of namespace %s: make it first, or use the source Job" $key $autoscaler.certificates.secretName $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kube-node.check.tracing" -}}
{{- with .Values.tracing -}}
{{- if and (not .endpoint) (or .tls.secretName .tls.clientCertificate (ne (int .percent) 100)) -}}
{{- fail "tracing has settings and tracing.endpoint is empty: name a collector, or leave them out" -}}
{{- end -}}
{{- if and (hasPrefix "http://" .endpoint) (or .tls.secretName .tls.clientCertificate) -}}
{{- fail "tracing.tls is for a collector at https://, and tracing.endpoint begins with http://: leave one of them out" -}}
{{- end -}}
{{- if and (hasPrefix "https://" .endpoint) (not .tls.secretName) -}}
{{- fail "tracing.endpoint begins with https://, and the image has no CA certificates: name a Secret with ca.crt in tracing.tls.secretName" -}}
{{- end -}}
{{- if and .tls.secretName (lookup "v1" "Namespace" "" "kube-system") -}}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace .tls.secretName | default dict -}}
{{- range $key := .tls.clientCertificate | ternary (list "ca.crt" "tls.crt" "tls.key") (list "ca.crt") -}}
{{- if not (dig "data" $key "" $secret) -}}
{{- fail (printf "there is no %s in Secret %s of namespace %s, by which a collector is reached: make it first" $key $.Values.tracing.tls.secretName $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kube-node.check.rest" -}}
{{- if and .Values.uninstall.deleteNodes (not .Values.uninstall.hook) -}}
{{- fail "uninstall.deleteNodes is what the hook does, and uninstall.hook is false: set it to true, or leave deleteNodes out" -}}
{{- end -}}
{{- if and (not .Values.crds.install) (not .Values.crds.keep) -}}
{{- fail "crds.keep is for CRDs that the chart installs, and crds.install is false: leave one of them out" -}}
{{- end -}}
{{- if and (not .Values.networkPolicy.enabled) (or .Values.networkPolicy.metricsFrom .Values.autoscaler.from .Values.hollow.endpoints.from) -}}
{{- fail "networkPolicy.metricsFrom, autoscaler.from and hollow.endpoints.from are parts of the NetworkPolicy, and networkPolicy.enabled is false: set it to true, or leave them out" -}}
{{- end -}}
{{- if and (not .Values.hollow.endpoints.enabled) (or .Values.hollow.endpoints.from .Values.hollow.endpoints.tlsSecretName) -}}
{{- fail "hollow.endpoints has settings and hollow.endpoints.enabled is false: set it to true, or leave them out" -}}
{{- end -}}
{{- with .Values.hollow.endpoints -}}
{{- $ports := splitList "-" .ports -}}
{{- $first := first $ports | int -}}
{{- $last := last $ports | int -}}
{{- if or (gt $first $last) (gt $last 65535) -}}
{{- fail (printf "hollow.endpoints.ports is %s: write a lower and a higher port, of 65535 at most" .ports) -}}
{{- end -}}
{{- $listeners := dict "operator.adminPort" $.Values.operator.adminPort -}}
{{- if $.Values.autoscaler.enabled -}}
{{- $_ := set $listeners "autoscaler.port" $.Values.autoscaler.port -}}
{{- end -}}
{{- range $name, $port := $listeners -}}
{{- if and $.Values.hollow.endpoints.enabled (le $first (int $port)) (le (int $port) $last) -}}
{{- fail (printf "%s is %d, which is in hollow.endpoints.ports (%d-%d): choose a port outside" $name (int $port) $first $last) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.serviceMonitor.enabled .Values.prometheusRule.enabled) (lookup "v1" "Namespace" "" "kube-system") (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail "serviceMonitor and prometheusRule are for the Prometheus operator, whose CRDs this cluster lacks: install it, or set both to false" -}}
{{- end -}}
{{- end }}
