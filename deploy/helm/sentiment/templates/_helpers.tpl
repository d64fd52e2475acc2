{{- define "sentiment.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* The name of the release, as in the first charts: another default would rename their objects. */}}
{{- define "sentiment.fullname" -}}
{{- $name := .Release.Name }}
{{- with .Values.nameOverride }}
{{- $name = ternary $name (printf "%s-%s" $name .) (contains . $name) }}
{{- end }}
{{- .Values.fullnameOverride | default $name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* What selectors select, which cannot change. */}}
{{- define "sentiment.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sentiment.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sentiment.labels" -}}
{{ include "sentiment.selectorLabels" . }}
{{ include "sentiment.commonLabels" . }}
{{- end }}

{{- define "sentiment.commonLabels" -}}
app.kubernetes.io/part-of: sentiment
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of pods that are not the service's, whose pods may not open connections. */}}
{{- define "sentiment.otherLabels" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (include "sentiment.name" .root) .what | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}

{{- define "sentiment.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "sentiment.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "sentiment.pod" -}}
serviceAccountName: {{ include "sentiment.serviceAccountName" . }}
automountServiceAccountToken: {{ .Values.serviceAccount.automount }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $context := deepCopy (.Values.podSecurityContext | default dict) }}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if eq (get $context . | int) 10001 }}
{{- $_ := unset $context . }}
{{- end }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml $context | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.gpu .Values.tolerations }}
tolerations:
  {{- if .Values.gpu }}
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "sentiment.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{/* An image by its target. The tag of a release is that of its images. */}}
{{- define "sentiment.image" -}}
{{ .root.Values.image.repository }}:{{ .tag | default (printf "v%s-%s" .root.Chart.AppVersion .target) }}
{{- end }}

{{/* The image of the service. */}}
{{- define "sentiment.serving" -}}
{{ include "sentiment.image" (dict "root" . "tag" .Values.image.tag "target" (ternary "gpu" "cpu" .Values.gpu)) }}
{{- end }}

{{/* An environment of the chart's variables and others, which replace those of the same name. */}}
{{- define "sentiment.env" -}}
{{- $names := list }}
{{- range .extra }}
{{- $names = append $names .name }}
{{- end }}
{{- range .chart | fromYamlArray }}
{{- if not (has .name $names) }}
{{ list . | toYaml }}
{{- end }}
{{- end }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where a container finds the keys. */}}
{{- define "sentiment.keys" -}}
{{- range $key, $name := dict "api-keys" "SENTIMENT_API_KEYS" "admin-keys" "SENTIMENT_ADMIN_KEYS" }}
{{- if not $.Values.keysSecret }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ include "sentiment.fullname" $ }}
      key: {{ $key }}
      optional: true
{{- else if has $key $.Values.keysInSecret }}
- name: {{ $name }}_FILE
  value: /etc/sentiment/keys/{{ $key }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "sentiment.quantity" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "T" 1e12 "Ti" 1099511627776 "P" 1e15 "Pi" 1125899906842624 }}
{{- $text := toString . }}
{{- mulf (regexFind "^[0-9.]+(e[+][0-9]+)?" $text | float64) (get $units (regexFind "[A-Za-z]*$" $text) | float64) }}
{{- end }}

{{- define "sentiment.autoscaled" -}}
{{- $enabled := .Values.autoscaling.enabled }}
{{- if ternary $enabled (kindIs "invalid" .Values.replicaCount) (kindIs "bool" $enabled) }}yes{{ end }}
{{- end }}

{{- define "sentiment.claim" -}}
{{ .Values.model.claim | default (printf "%s-models" (include "sentiment.fullname" .)) }}
{{- end }}
