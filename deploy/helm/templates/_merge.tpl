{{/* Merges the map `patch` into the map `into` as kubectl does: maps by key, lists of maps by the name or path of their
items, and everything else is replaced. `$patch: delete` removes an item, and null a key. `envFrom` is the exception: its
items are added, because without the first the server has no settings. */}}
{{- define "merge" }}
{{- range $key, $new := .patch }}
{{- $old := get $.into $key }}
{{- $id := include "identity" $new }}
{{- if and (hasPrefix "$" $key) (ne $key "$patch") }}{{ fail (printf "%s cannot be merged" $key) }}{{ end }}
{{- if and (eq $key "$patch") (ne $new "delete") }}{{ fail (printf "$patch: %s cannot be merged" $new) }}{{ end }}
{{- if kindIs "invalid" $new }}
{{- $_ := unset $.into $key }}
{{- else if and (eq $key "envFrom") (kindIs "slice" $old) }}
{{- $_ := set $.into $key (concat $old $new) }}
{{- else if and (kindIs "map" $new) (kindIs "map" $old) }}
{{- include "merge" (dict "into" $old "patch" $new) }}
{{- else if and (not $id) (has $key (list "containers" "env" "volumes" "volumeMounts")) }}
{{- fail (printf "deployment: each item of %s needs its name" $key) }}
{{- else if and $id (kindIs "slice" $old) }}
{{- $all := list }}
{{- range $item := $old }}
{{- $keep := true }}
{{- range $change := $new }}
{{- if eq (get $item $id) (get $change $id) }}
{{- $keep = ne (get $change "$patch") "delete" }}
{{- include "merge" (dict "into" $item "patch" $change) }}
{{- end }}
{{- end }}
{{- if $keep }}{{ $all = append $all $item }}{{ end }}
{{- end }}
{{- range $change := $new }}
{{- $is_new := true }}
{{- range $item := $old }}{{ if eq (get $item $id) (get $change $id) }}{{ $is_new = false }}{{ end }}{{ end }}
{{- if and $is_new (ne (get $change "$patch") "delete") }}{{ $all = append $all $change }}{{ end }}
{{- end }}
{{- $_ := set $.into $key $all }}
{{- else }}
{{- $_ := set $.into $key $new }}
{{- end }}
{{- end }}
{{- end }}

{{/* The field that tells the items of this list apart; empty if it is no list, or its items have none. */}}
{{- define "identity" }}
{{- if and (kindIs "slice" .) . }}
{{- $items := . }}
{{- range $id := list "mountPath" "name" }}
{{- $has_all := true }}
{{- range $items }}{{ if not (and (kindIs "map" .) (hasKey . $id)) }}{{ $has_all = false }}{{ end }}{{ end }}
{{- if $has_all }}{{ $id }}{{ break }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
