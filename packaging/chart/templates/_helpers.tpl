{{- define "pippin.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "pippin.labels" -}}
app.kubernetes.io/name: pippin
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "pippin.selector" -}}
app.kubernetes.io/name: pippin
app.kubernetes.io/instance: {{ .Release.Name }}
pippin/role: server
{{- end -}}

{{/* The Pods to which the Service leads: this release's own, or another's that has taken its place. */}}
{{- define "pippin.reached" -}}
app.kubernetes.io/name: pippin
app.kubernetes.io/instance: {{ .Values.service.release | default .Release.Name }}
pippin/role: server
{{- end -}}

{{- define "pippin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "pippin.flags" -}}
{{- $own := list .Values.model "--host" "0.0.0.0" "--port" "8000" "--drain-timeout" (toString .Values.drainSeconds) -}}
{{- if .Values.ray.enabled -}}
{{- $own = concat $own (list "--cluster" "auto" "--replicas" (toString .Values.ray.replicas)) -}}
{{- end -}}
{{- toJson (concat $own .Values.args) -}}
{{- end -}}

{{/* The server's container but for its command. A request may outlive the end of its Pod's address by a moment: hence the
pause before the end, which counts towards the grace period. */}}
{{- define "pippin.server" -}}
image: {{ include "pippin.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
ports:
  - { name: http, containerPort: 8000 }
env:
  - name: PIPPIN_API_KEYS
    valueFrom:
      secretKeyRef: { name: {{ required "apiKeySecret: name the secret of the API keys" .Values.apiKeySecret }}, key: api-keys }
  {{- with .Values.stateSecret }}
  - name: PIPPIN_STATE
    valueFrom:
      secretKeyRef: { name: {{ . }}, key: address }
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
startupProbe:
  httpGet: { path: /healthz, port: http }
  periodSeconds: 2
  failureThreshold: 150
readinessProbe:
  httpGet: { path: /readyz, port: http }
  periodSeconds: 2
  timeoutSeconds: 5
lifecycle:
  preStop:
    exec: { command: ["sleep", "5"] }
securityContext:
  allowPrivilegeEscalation: false
  capabilities: { drop: ["ALL"] }
volumeMounts:
  - { name: models, mountPath: /models }
{{- end -}}

{{- define "pippin.pod" -}}
terminationGracePeriodSeconds: {{ add .Values.drainSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  fsGroup: 1000
  seccompProfile: { type: RuntimeDefault }
volumes:
  - name: models
    {{- if .Values.models.existingClaim }}
    persistentVolumeClaim: { claimName: {{ .Values.models.existingClaim }} }
    {{- else }}
    emptyDir: {}
    {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
