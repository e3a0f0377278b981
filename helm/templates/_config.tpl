{{- /* The config.yaml of this release. JSON is YAML in which no string turns into a number and no integer into 1e+06 (helm#6867). */ -}}
{{- define "gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if include "gateway.isExample" . -}}
{{- $config = mergeOverwrite (.Files.Get "example.yaml" | fromYaml) $config -}}
{{- end -}}
{{- $limits := $config.limits | default dict -}}
{{- if not (hasKey $limits "expected_processes") -}}
{{- $_ := set $config "limits" (set $limits "expected_processes" (include "gateway.maxReplicas" . | int)) -}}
{{- end -}}
{{- toPrettyJson $config -}}
{{- end -}}

{{- /* What of the config a running gateway cannot take on: the keys of docs/configuration.md, and variables that it has or has not. */ -}}
{{- define "gateway.takesRestart" -}}
{{- $text := include "gateway.config" . -}}
{{- $config := fromJson $text -}}
{{- $limits := pick ($config.limits | default dict) "store" "store_timeout" "journal" "events" "lease" "ledger_retention" -}}
{{- $server := pick $config.server "listen" "workers" "reuse_port" -}}
{{- $variables := regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" $text -1 | uniq | sortAlpha -}}
{{- toJson (dict "server" $server "admin" (pick $config.admin "listen") "limits" $limits "variables" $variables) -}}
{{- end -}}

{{- define "gateway.isExample" -}}
{{- if not (or .Values.config.auth .Values.config.models .Values.config.pools .Values.existingConfigMap) }}true{{ end -}}
{{- end -}}

{{- define "gateway.maxReplicas" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled | int -}}
{{- end -}}

{{- /* Where EndpointSlices are watched, as JSON: each namespace once. */ -}}
{{- define "gateway.discoveryNamespaces" -}}
{{- $found := .Values.rbac.namespaces -}}
{{- if not .Values.existingConfigMap -}}
{{- range $pool := .Values.config.pools -}}
{{- with $pool.discovery -}}
{{- with .kubernetes -}}
{{- $found = append $found (.namespace | default $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "gateway.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{- define "gateway.seconds" -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) (regexFind "[a-z]+$" .) -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) $factor | ceil | int64 -}}
{{- end -}}

{{- /* Every way in which these values would drop streams, spend twice or show a secret. */ -}}
{{- define "gateway.check" -}}
{{- $config := .Values.config -}}
{{- $drain := include "gateway.seconds" $config.server.drain_timeout | int64 -}}
{{- $delay := include "gateway.seconds" ($config.server.drain_delay | default "0s") | int64 -}}
{{- $least := add .Values.preStopSeconds $delay $drain 7 -}}
{{- if le (int64 .Values.terminationGracePeriodSeconds) $least -}}
{{- fail (printf "terminationGracePeriodSeconds: %d would cut streams off: expected more than %d, which is preStopSeconds (%d) + config.server.drain_delay (%d) + drain_timeout (%d) + 7" (int64 .Values.terminationGracePeriodSeconds) $least (int64 .Values.preStopSeconds) $delay $drain) -}}
{{- end -}}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" $config.admin.listen -}}
{{- fail "config.admin.listen: probes cannot reach a loopback address in a pod; expected one such as 0.0.0.0:9090 or [::]:9090" -}}
{{- end -}}
{{- if not (or .Values.existingConfigMap (include "gateway.isExample" .)) -}}
{{- include "gateway.checkConfig" . -}}
{{- end -}}
{{- end -}}

{{- define "gateway.checkConfig" -}}
{{- $config := .Values.config -}}
{{- range $section := list "auth" "models" "pools" -}}
{{- if not (get $config $section) -}}
{{- fail (printf "config.%s: missing; the gateway needs auth, models and pools (the chart's example.yaml has the least of each)" $section) -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := $config.pools -}}
{{- if and $pool.api_key (not (regexMatch "^\\$\\{[^}]+\\}$" $pool.api_key)) -}}
{{- fail (printf "config.pools.%s.api_key: a ConfigMap is no place for a secret; expected a reference such as ${LLAMA_KEY}, with the key in existingSecret" $name) -}}
{{- end -}}
{{- end -}}
{{- $store := dig "store" "memory" ($config.limits | default dict) -}}
{{- if or (regexMatch "//[^@/]*:[^@$][^@/]*@" $store) (regexMatch "[?&]sentinel_password=[^&$]" $store) -}}
{{- fail "config.limits.store: a ConfigMap is no place for a password; expected a reference such as redis://:${REDIS_PASSWORD}@redis:6379/0, with the password in existingSecret" -}}
{{- end -}}
{{- if and (eq $store "memory") (ne (dig "workers" 1 $config.server | toString) "1") -}}
{{- fail (printf "config.limits.store: with memory each of %v workers would grant every limit once; expected redis://… or workers: 1" $config.server.workers) -}}
{{- end -}}
{{- if and (eq $store "memory") (gt (include "gateway.maxReplicas" . | int) 1) -}}
{{- fail (printf "config.limits.store: with memory each of %s pods would grant every limit once; expected redis://… or a single replica" (include "gateway.maxReplicas" .)) -}}
{{- end -}}
{{- end -}}
