{{/* What a schema cannot compare, and the names that values had in earlier charts. */}}
{{- define "sentiment.check" -}}
{{- $renamed := list }}
{{- range $old, $new := dict "image.pullSecrets" "imagePullSecrets" "autoscaling.queueTokens" "autoscaling.queueWaitMs, in milliseconds" }}
{{- $path := splitList "." $old }}
{{- if hasKey (get $.Values (first $path)) (last $path) }}
{{- $renamed = append $renamed (printf "%s is now %s" $old $new) }}
{{- end }}
{{- end }}
{{- if eq .Values.autoscaling.by "none" }}
{{- $renamed = append $renamed "autoscaling.by: none is now replicaCount, the number of pods" }}
{{- end }}
{{- with $renamed }}
{{- fail (join "; " .) }}
{{- end }}
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
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.enabled needs ingress.hosts, such as [{host: sentiment.example.com}]" }}
{{- end }}
{{- include "sentiment.checkSettings" . }}
{{- end }}

{{- define "sentiment.checkSettings" -}}
{{- with .Values.settings }}
{{- $device := .device | default (ternary "cuda" "auto" $.Values.gpu) }}
{{- if and (eq (toString .precision) "int8") (hasPrefix "cuda" $device) }}
{{- fail "settings.precision: int8 is for CPUs; give fp16, fp32 or auto" }}
{{- end }}
{{- $gpus := trimPrefix "cuda:" $device | splitList "," }}
{{- if ne (len $gpus) (len (uniq $gpus)) }}
{{- fail (printf "settings.device: %s names a GPU twice" $device) }}
{{- end }}
{{- $held := .max_inflight_bytes | toString | trim | float64 }}
{{- $body := .max_body_bytes | default 2097152 | toString | trim | float64 }}
{{- if and $held (lt $held $body) }}
{{- fail (printf "settings.max_inflight_bytes (%.0f) is below settings.max_body_bytes (%.0f): all bodies together need at least one" $held $body) }}
{{- end }}
{{- range regexFindAll "[0-9.]+/[0-9]+" (toString .trusted_proxies) -1 }}
{{- $address := 0 }}
{{- range splitList "." (dir .) }}
{{- $address = add (mul $address 256) . }}
{{- end }}
{{- $size := 1 }}
{{- range until (sub 32 (base . | int) | int) }}
{{- $size = mul $size 2 }}
{{- end }}
{{- if mod $address $size }}
{{- fail (printf "settings.trusted_proxies: %s is no network, because its address has bits beyond its prefix" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.gpu (not .Values.model.name) (not (.Values.settings | default dict).device) }}
{{- fail "gpu needs model.name: the embedded model has no variant for GPUs" }}
{{- end }}
{{- end }}
