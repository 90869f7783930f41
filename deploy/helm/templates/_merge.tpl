{{/* Merges the map `patch` into the map `into` as kubectl does: maps by key, lists of maps by the name or path of their
items, and everything else is replaced. `$patch: delete` removes an item. */}}
{{- define "merge" }}
{{- range $key, $new := .patch }}
{{- $old := get $.into $key }}
{{- $id := include "identity" $new }}
{{- if and (kindIs "map" $new) (kindIs "map" $old) }}
{{- include "merge" (dict "into" $old "patch" $new) }}
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
{{- if $is_new }}{{ $all = append $all $change }}{{ end }}
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
{{- $first := first . }}
{{- if kindIs "map" $first }}
{{- range list "mountPath" "name" }}{{ if hasKey $first . }}{{ . }}{{ break }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
