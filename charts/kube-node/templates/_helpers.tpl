{{/* What several templates have in common. Names of objects are fixed, since a cluster has one kube-node; namespaces are free. */}}

{{- define "kube-node.selector" -}}
app.kubernetes.io/name: kube-node
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of an object: root and component; labels, which win over those of all objects. */}}
{{- define "kube-node.labels" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" -}}
{{- $own := dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/version" .root.Chart.AppVersion "helm.sh/chart" $chart -}}
{{- $selector := include "kube-node.selector" . | fromYaml -}}
{{- merge (dict) $selector $own (.labels | default dict) .root.Values.commonLabels | toYaml -}}
{{- end }}

{{/* The metadata of an object: root, component and name; namespace, that of the release unless given, "" for none; labels and
annotations besides those of all objects; hook and weight, for objects that are there as long as the hook runs. */}}
{{- define "kube-node.metadata" -}}
name: {{ .name }}
{{- with hasKey . "namespace" | ternary .namespace .root.Release.Namespace }}
namespace: {{ . | quote }}
{{- end }}
labels:
  {{- include "kube-node.labels" . | nindent 2 }}
{{- $annotations := merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
{{- with .hook }}
{{- $_ := set $annotations "helm.sh/hook" . }}
{{- $_ = set $annotations "helm.sh/hook-weight" $.weight }}
{{- $_ = set $annotations "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A text of files/ with the namespaces of this release. In two steps, since either name may contain the other's default. */}}
{{- define "kube-node.namespaced" -}}
{{- $text := .text | replace "kube-node-system" "<operator>" | replace "kubemark" "<machines>" -}}
{{- $text | replace "<operator>" .root.Release.Namespace | replace "<machines>" .root.Values.machines.namespace -}}
{{- end }}

{{/* An object of files/, with the labels and annotations of all objects. */}}
{{- define "kube-node.labelled" -}}
{{- $metadata := .object.metadata -}}
{{- $labels := include "kube-node.labels" (dict "root" .root "component" "operator") | fromYaml -}}
{{- $_ := set $metadata "labels" (merge (dict) ($metadata.labels | default dict) $labels) -}}
{{- $annotations := merge (dict) (.annotations | default dict) ($metadata.annotations | default dict) .root.Values.commonAnnotations -}}
{{- with $annotations -}}
{{- $_ := set $metadata "annotations" . -}}
{{- end -}}
{{- toYaml .object -}}
{{- end }}

{{- define "kube-node.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Of every pod: never on a node without containers, where it would be said to run, and would not. */}}
{{- define "kube-node.pod" -}}
{{- $rule := dict "key" "kube-node.io/node-controller" "operator" "NotIn" "values" (list "hollow" "kubemark") -}}
{{- $affinity := deepCopy .Values.operator.affinity -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list (dict)) -}}
{{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $rule)) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ = set $affinity "nodeAffinity" $node -}}
{{- with .Values.podSecurityContext -}}
securityContext:
  {{- toYaml . | nindent 2 }}
{{ end -}}
affinity:
  {{- toYaml $affinity | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kube-node.container" -}}
image: {{ include "kube-node.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- /* The end of the log of a failed program is its reason, also where the kernel has refused to start the program. */}}
terminationMessagePolicy: FallbackToLogsOnError
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod template of a job: root, component, restartPolicy, args; its ServiceAccount has the component's name. */}}
{{- define "kube-node.job-pod" -}}
metadata:
  labels:
    {{- include "kube-node.labels" . | nindent 4 }}
  {{- with .root.Values.jobs.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: kube-node-{{ .component }}
  restartPolicy: {{ .restartPolicy }}
  {{- include "kube-node.pod" .root | nindent 2 }}
  containers:
    - name: {{ .component }}
      {{- include "kube-node.container" .root | nindent 6 }}
      resources:
        {{- toYaml .root.Values.jobs.resources | nindent 8 }}
      args:
        {{- toYaml .args | nindent 8 }}
{{- end }}

{{/* A Secret as a volume, read by whatever user the container has: 292 is 0444, which YAML 1.2 would read as text. Without the
Secret the program says what is missing. */}}
{{- define "kube-node.secret-volume" -}}
{secretName: {{ . | quote }}, defaultMode: 292, optional: true}
{{- end }}

{{/* The variables of OpenTelemetry; none without a collector. */}}
{{- define "kube-node.tracing.env" -}}
{{- with .Values.tracing -}}
{{- if .endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME)
{{- if lt (int .percent) 100 }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ divf .percent 100 | quote }}
{{- end }}
{{- if .tls.secretName }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /collector/ca.crt
{{- end }}
{{- if .tls.clientCertificate }}
- name: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
  value: /collector/tls.crt
- name: OTEL_EXPORTER_OTLP_CLIENT_KEY
  value: /collector/tls.key
{{- end }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kube-node.autoscaler.client-namespace" -}}
{{ .Values.autoscaler.clientNamespace | default .Release.Namespace }}
{{- end }}

{{/* Secret with the certificate of the autoscaler server. */}}
{{- define "kube-node.autoscaler.secret" -}}
{{- if eq .Values.autoscaler.certificates.source "Secret" -}}
{{ .Values.autoscaler.certificates.secretName }}
{{- else -}}
kube-node-autoscaler-server
{{- end -}}
{{- end }}

{{/* Names under which the autoscaler server is called, as a list in YAML. */}}
{{- define "kube-node.autoscaler.names" -}}
{{- $short := printf "kube-node-autoscaler.%s" .Release.Namespace -}}
- kube-node-autoscaler
- {{ $short }}
- {{ $short }}.svc
- {{ $short }}.svc.cluster.local
{{- end }}

{{/* Flags of the endpoints of hollow kubelets. */}}
{{- define "kube-node.endpoints.args" -}}
{{- with .Values.hollow.endpoints }}
{{- if .enabled -}}
- --kubelet-address=$(POD_IP)
- --kubelet-ports={{ .ports }}
{{- if .tlsSecretName }}
- --kubelet-tls-dir=/kubelets
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The variables of the operator and of workers: which pod they are, the address that the flags of endpoints name, and yours. */}}
{{- define "kube-node.env" -}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if .Values.hollow.endpoints.enabled }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIPs}}
{{- end }}
{{- with .Values.operator.logFilter }}
- name: RUST_LOG
  value: {{ . | quote }}
{{- end }}
{{- with .Values.operator.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secret with the certificate of these endpoints; nothing where there is none. */}}
{{- define "kube-node.endpoints.secret" -}}
{{- if .Values.hollow.endpoints.enabled }}{{ .Values.hollow.endpoints.tlsSecretName }}{{ end -}}
{{- end }}

{{/* Ports of the API server, as a list in JSON. */}}
{{- define "kube-node.api-server-ports" -}}
{{- $slice := lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes" | default dict -}}
{{- $ports := list 443 -}}
{{- range $slice.ports | default (list (dict "port" 6443) (dict "port" 8443) (dict "port" 16443)) -}}
{{- $ports = append $ports (int .port) -}}
{{- end -}}
{{- range .Values.networkPolicy.apiServerPorts -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end }}

{{/* Egress to DNS, and to these TCP ports. A policy applies to the port of the pod behind a Service: OpenShift's DNS pods have 5353. */}}
{{- define "kube-node.egress" -}}
- ports:
    {{- range $port := list 53 5353 }}
    - {port: {{ $port }}, protocol: UDP}
    - {port: {{ $port }}, protocol: TCP}
    {{- end }}
    {{- range . | uniq }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}
