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

{{- define "sentiment.claim" -}}
{{ .Values.model.claim | default (printf "%s-models" .Release.Name) }}
{{- end }}
