{{- define "sentiment.labels" -}}
app.kubernetes.io/name: sentiment
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Security of a pod: the user of the images, no token of the cluster. */}}
{{- define "sentiment.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch # otherwise each start goes through all files of the volume
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "sentiment.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* An image by its target. The tag of a release is that of its images. */}}
{{- define "sentiment.image" -}}
{{ .root.Values.image.repository }}:{{ .tag | default (printf "v%s-%s" .root.Chart.AppVersion .target) }}
{{- end }}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "sentiment.quantity" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "T" 1e12 "Ti" 1099511627776 }}
{{- $text := toString . }}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[A-Za-z]*$" $text) | float64) }}
{{- end }}

{{/* What a schema cannot compare. */}}
{{- define "sentiment.check" -}}
{{- with .Values.autoscaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" }}
{{- end }}
{{- end }}
{{- if eq (int .Values.service.port) (int .Values.service.grpcPort) }}
{{- fail "service.grpcPort is service.port: give gRPC a port of its own" }}
{{- end }}
{{- with .Values.networkPolicy }}
{{- if and .enabled (ne $.Values.service.type "ClusterIP") (not (contains "/" (join " " .requestsFrom))) }}
{{- fail "networkPolicy.requestsFrom has no network, so nobody outside the cluster could use the service" }}
{{- end }}
{{- end }}
{{- if and .Values.gpu (not .Values.model.name) (not (hasKey .Values.settings "device")) }}
{{- fail "gpu needs model.name: the embedded model has no variant for GPUs" }}
{{- end }}
{{- end }}

{{- define "sentiment.claim" -}}
{{ .Values.model.claim | default (printf "%s-models" .Release.Name) }}
{{- end }}
