{{/* What several templates have in common. Names are fixed: there is one kube-node in a cluster. */}}

{{- define "kube-node.selector" -}}
app.kubernetes.io/name: kube-node
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "kube-node.labels" -}}
{{ include "kube-node.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
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

{{/* Of every pod: the level «restricted» of the pod security standards, and never on a node without containers. */}}
{{- define "kube-node.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
# A pod on a hollow node is said to run, and does not.
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: kube-node.io/node-controller, operator: NotIn, values: [hollow, kubemark]}
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
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Of the jobs: small, and done soon. */}}
{{- define "kube-node.job-resources" -}}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 128Mi}
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

{{/* The address that these flags name. */}}
{{- define "kube-node.endpoints.env" -}}
{{- if .Values.hollow.endpoints.enabled -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- end }}

{{/* Secret with their certificate; nothing where there is none. */}}
{{- define "kube-node.endpoints.secret" -}}
{{- if .Values.hollow.endpoints.enabled }}{{ .Values.hollow.endpoints.tlsSecretName }}{{ end -}}
{{- end }}
