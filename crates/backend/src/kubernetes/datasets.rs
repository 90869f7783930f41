//! Datasets as volumes of pods.

use model::{Dataset, DatasetSource};
use serde_json::{Value, json};

use super::patch::Patch;
use crate::{BackendError, BackendErrorKind as Kind, Spec};

/// Sources of volumes that datasets can have, and whether the source has a field `readOnly`.
const SOURCES: [(&str, bool); 5] = [
    ("persistentVolumeClaim", true),
    ("nfs", true),
    ("csi", true),
    ("image", false),
    (HOST_PATH, false),
];

const HOST_PATH: &str = "hostPath";

/// The datasets of a sandbox: their names, each with the source of its volume.
///
/// # Errors
/// If a source is none that datasets can have, or is a folder of a node and the patch does not allow that.
pub(super) fn datasets(spec: &Spec, patch: &Patch) -> Result<Vec<(String, Value)>, BackendError> {
    let volume = |dataset: &std::sync::Arc<Dataset>| {
        let source = source(dataset, patch).map_err(|(why, fix)| {
            let text = format!("The dataset {} {why}.", dataset.name);
            BackendError::new(Kind::Refused, text).with_fix(fix)
        })?;
        Ok((dataset.name.to_string(), source))
    };
    spec.datasets.iter().map(volume).collect()
}

/// The source of a dataset's volume; or why there is none, and a fix.
fn source(dataset: &Dataset, patch: &Patch) -> Result<Value, (String, String)> {
    let source = match &dataset.source {
        DatasetSource::Folder(folder) | DatasetSource::Root(folder) => {
            json!({ HOST_PATH: { "path": folder, "type": "Directory" } })
        }
        DatasetSource::Volume(source) => source.clone(),
    };
    let names = SOURCES.map(|(name, _)| name).join(", ");
    let none = || ("has a volume that is none of those".to_owned(), format!("Use one of {names}."));
    let Some(fields) = source.as_object().filter(|fields| fields.len() == 1) else {
        return Err(none());
    };
    let known = SOURCES.into_iter().find(|(name, _)| fields.contains_key(*name));
    let (kind, has_read_only) = known.ok_or_else(none)?;
    if kind == HOST_PATH && !patch.allows_host_path() {
        return Err((
            "is a folder of the nodes".into(),
            "Use a volume (persistentVolumeClaim, nfs or csi), or allow it: the pod patch sets the annotation \
             llm-sandbox/allow-host-path to \"true\"."
                .into(),
        ));
    }
    let mut source = source;
    if has_read_only && let Some(fields) = source[kind].as_object_mut() {
        fields.insert("readOnly".into(), true.into());
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: DatasetSource, patch: &str) -> Result<Value, String> {
        let name = "sales".parse().expect("a name");
        let dataset = Dataset { name, source, description: String::new() };
        let patch = Patch::parse(patch).expect("a patch");
        source_text(&dataset, &patch)
    }

    fn source_text(dataset: &Dataset, patch: &Patch) -> Result<Value, String> {
        source(dataset, patch).map_err(|(why, _)| why)
    }

    #[test]
    fn a_volume_is_of_a_known_kind_and_can_only_be_read() {
        let of = |volume: Value| of(DatasetSource::Volume(volume), "{}");
        assert_eq!(
            of(json!({ "persistentVolumeClaim": { "claimName": "x" } })),
            Ok(json!({ "persistentVolumeClaim": { "claimName": "x", "readOnly": true } }))
        );
        let nfs = of(json!({ "nfs": { "server": "n", "path": "/", "readOnly": "false" } }));
        assert_eq!(nfs.map(|it| it["nfs"]["readOnly"].clone()), Ok(true.into()));
        for other in [
            json!({}),
            json!([]),
            json!({ "secret": { "secretName": "x" } }),
            json!({ "emptyDir": {} }),
            json!({ "nfs": {}, "hostPath": {} }),
            json!({ "hostPath": { "path": "/srv" } }),
        ] {
            assert!(of(other.clone()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_folder_of_a_node_needs_the_permission_of_the_patch() {
        let path = || DatasetSource::Folder("/srv/sales".into());
        assert!(of(path(), "{}").is_err());
        let allows = |value: &str| {
            format!("metadata: {{ annotations: {{ llm-sandbox/allow-host-path: '{value}' }} }}")
        };
        assert!(of(path(), &allows("false")).is_err());
        let source = of(path(), &allows("true")).expect("allowed");
        assert_eq!(source, json!({ "hostPath": { "path": "/srv/sales", "type": "Directory" } }));
    }
}
