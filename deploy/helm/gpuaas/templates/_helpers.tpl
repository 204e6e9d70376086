{{/* The names of the objects are fixed: the roles in Vault are bound to the names of the service accounts. */}}

{{/* Metadata of an object. Arguments: root, name, component (optional). */}}
{{- define "gpuaas.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gpuaas.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Labels that select pods. Arguments: component (optional, "" selects the pods of all components). */}}
{{- define "gpuaas.selector" -}}
app.kubernetes.io/name: gpuaas
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/*
The Deployment of a component. Arguments: root, component, program (api or worker), account, database (a Secret), values
(replicas, cpu, memoryMiB, terminationGracePeriodSeconds), env (variables), settings (the operator's variables), and optional
args, ports, volumes (each is mounted at /etc/gpuaas/NAME unless mountPath is set) and autoscaled.
*/}}
{{- define "gpuaas.deployment" -}}
{{- $v := .root.Values -}}
{{- $metricsPort := ternary 9091 9090 (eq .program "api") -}}
{{- $env := dict
  "GOMEMLIMIT" (printf "%dMiB" (div (mul (int .values.memoryMiB) 9) 10))
  "GPUAAS_DATABASE_URL_FILE" "/etc/gpuaas/database/url"
  "GPUAAS_ENV" $v.environment
  "GPUAAS_METRICS_ADDR" (printf ":%d" $metricsPort)
  "GPUAAS_NODE_PUBLIC_URL" $v.nodeAPI.url
  "TEMPORAL_ADDRESS" $v.temporal.address
  "TEMPORAL_NAMESPACE" $v.temporal.namespace
  "TEMPORAL_TLS" $v.temporal.tls
  "VAULT_ADDR" $v.vault.address
-}}
{{- $volumes := dict "database" (dict "secret" (dict "secretName" .database)) -}}
{{- if $v.vault.appRoleSecrets.api -}}
  {{- $_ := set $volumes "vault" (dict "secret" (dict "secretName" (index $v.vault.appRoleSecrets .program))) -}}
  {{- $_ := set $env "GPUAAS_VAULT_ROLE_ID_FILE" "/etc/gpuaas/vault/role-id" -}}
  {{- $_ := set $env "GPUAAS_VAULT_SECRET_ID_FILE" "/etc/gpuaas/vault/secret-id" -}}
{{- else -}}
  {{- $token := dict "serviceAccountToken" (dict "audience" $v.vault.kubernetes.audience "expirationSeconds" 3600 "path" "token") -}}
  {{- $_ := set $volumes "vault" (dict "projected" (dict "sources" (list $token))) -}}
  {{- $_ := set $env "GPUAAS_VAULT_KUBERNETES_ROLE" (printf "gpuaas-%s" .program) -}}
  {{- $_ := set $env "GPUAAS_VAULT_KUBERNETES_MOUNT" $v.vault.kubernetes.mount -}}
  {{- $_ := set $env "GPUAAS_VAULT_KUBERNETES_TOKEN_FILE" "/etc/gpuaas/vault/token" -}}
{{- end -}}
{{- if ne $v.temporal.credential "none" -}}
  {{- $_ := set $volumes "temporal" (dict "secret" (dict "secretName" (index $v.temporal.secrets .program))) -}}
{{- end -}}
{{- if eq $v.temporal.credential "apiKey" -}}
  {{- $_ := set $env "TEMPORAL_API_KEY_FILE" "/etc/gpuaas/temporal/api-key" -}}
{{- else if eq $v.temporal.credential "certificate" -}}
  {{- $_ := set $env "TEMPORAL_TLS_CLIENT_CERT_PATH" "/etc/gpuaas/temporal/tls.crt" -}}
  {{- $_ := set $env "TEMPORAL_TLS_CLIENT_KEY_PATH" "/etc/gpuaas/temporal/tls.key" -}}
{{- end -}}
{{- with $v.temporal.serverName -}}{{- $_ := set $env "TEMPORAL_TLS_SERVER_NAME" . -}}{{- end -}}
{{- with $v.trustedCAs -}}
  {{- $_ := set $volumes "cas" (dict "configMap" (dict "name" .)) -}}
  {{- /* Go reads this folder in addition to the system's CAs. */ -}}
  {{- $_ := set $env "SSL_CERT_DIR" "/etc/gpuaas/cas" -}}
{{- end -}}
{{- $env = merge $env (.env | default dict) -}}
{{- $volumes = merge $volumes (.volumes | default dict) -}}
{{- range $name, $value := merge (dict) .settings $v.settings -}}
  {{- if hasKey $env $name -}}{{- fail (printf "settings: the chart sets %s" $name) -}}{{- end -}}
  {{- $_ := set $env $name $value -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "gpuaas.metadata" (dict "root" .root "name" (printf "gpuaas-%s" .component) "component" .component) | nindent 2 }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "gpuaas.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- include "gpuaas.selector" . | nindent 8 }}
    spec:
      serviceAccountName: {{ .account }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      {{- with $v.imagePullSecrets }}
      imagePullSecrets:
      {{- range . }}
      - name: {{ . }}
      {{- end }}
      {{- end }}
      {{- with $v.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      topologySpreadConstraints:
      {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
      - maxSkew: 1
        topologyKey: {{ . }}
        whenUnsatisfiable: ScheduleAnyway
        matchLabelKeys: [pod-template-hash]
        labelSelector:
          matchLabels:
            {{- include "gpuaas.selector" $ | nindent 12 }}
      {{- end }}
      containers:
      - name: {{ .program }}
        image: {{ index $v.images .program | quote }}
        {{- with .args }}
        args: {{ toJson . }}
        {{- end }}
        env:
        {{- range $name, $value := $env }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        ports:
        - {name: metrics, containerPort: {{ $metricsPort }}}
        {{- range $name, $port := .ports }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
        livenessProbe:
          httpGet: {path: /livez, port: metrics}
          periodSeconds: 10
          timeoutSeconds: 3
        readinessProbe:
          httpGet: {path: /readyz, port: metrics}
          periodSeconds: 5
          timeoutSeconds: 3
        resources:
          requests:
            cpu: {{ .values.cpu }}
            memory: {{ .values.memoryMiB }}Mi
          limits:
            memory: {{ .values.memoryMiB }}Mi
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
        {{- range $name, $source := $volumes }}
        - name: {{ $name }}
          mountPath: {{ $source.mountPath | default (printf "/etc/gpuaas/%s" $name) }}
          {{- if or $source.secret $source.projected $source.configMap }}
          readOnly: true
          {{- end }}
        {{- end }}
      volumes:
      {{- range $name, $source := $volumes }}
      - name: {{ $name }}
        {{- toYaml (omit $source "mountPath") | nindent 8 }}
      {{- end }}
{{- end }}
