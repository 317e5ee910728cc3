{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Name of the objects: the release's name, and "gpudra" once. */}}
{{- define "gpudra.fullname" -}}
{{- if contains "gpudra" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gpudra" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gpudra.kubeletPlugin" -}}
{{ include "gpudra.fullname" . }}-kubelet-plugin
{{- end -}}

{{- define "gpudra.controller" -}}
{{ include "gpudra.fullname" . }}-controller
{{- end -}}

{{- define "gpudra.image" -}}
{{- $repository := required "image.repository must name an image of gpudra: there is no published one yet" .Values.image.repository -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "gpudra.labels" -}}
app.kubernetes.io/name: gpudra
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Labels that select the pods of one part; never changed, since selectors are immutable. */}}
{{- define "gpudra.selector" -}}
app.kubernetes.io/name: gpudra
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Variables that lead every client in a pod to the API server. */}}
{{- define "gpudra.apiServer" -}}
{{- with .Values.apiServer.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
{{- end }}
{{- with .Values.apiServer.port }}
- {name: KUBERNETES_SERVICE_PORT, value: {{ . | quote }}}
{{- end }}
{{- end -}}

{{- define "gpudra.webhook" -}}
{{ include "gpudra.fullname" . }}-webhook
{{- end -}}

{{/* The Secret with the webhook's certificate. */}}
{{- define "gpudra.webhookSecret" -}}
{{- if eq .Values.webhook.tls.mode "secret" -}}
{{ required "webhook.tls.secretName must name the Secret with the certificate" .Values.webhook.tls.secretName }}
{{- else -}}
{{ include "gpudra.webhook" . }}-tls
{{- end -}}
{{- end -}}

{{/* A class of devices that are parts of cards: "mig", "share", "monitor". */}}
{{- define "gpudra.partClass" -}}
{{ .type }}.{{ trimPrefix "gpu." .root.Values.driverName }}
{{- end -}}
