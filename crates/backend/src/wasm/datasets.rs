//! Datasets of a sandbox: folders that its process opens before it gives up its rights.

use std::{ffi::OsString, io, sync::Arc};

use model::{Dataset, DatasetSource};

use crate::{BackendError, BackendErrorKind, dataset_needs_path};

/// The datasets as arguments of the process, `NAME=PATH`. The process only starts if it can read each folder, so that
/// no program takes a dataset for empty.
///
/// # Errors
/// If one of them is not a folder, or cannot be read with the rights of a sandbox's process.
pub(super) fn readable(datasets: &[Arc<Dataset>]) -> Result<Vec<OsString>, BackendError> {
    datasets.iter().map(|dataset| argument(dataset)).collect()
}

fn argument(dataset: &Dataset) -> Result<OsString, BackendError> {
    let Dataset { name, source, .. } = dataset;
    let (DatasetSource::Folder(folder) | DatasetSource::Root(folder)) = source else {
        return Err(dataset_needs_path(name));
    };
    embedded::check_dataset(folder).map_err(|error| {
        let at = folder.display();
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => BackendErrorKind::Denied,
            _ => BackendErrorKind::Refused,
        };
        let text = format!("The folder {at} of the dataset {name} cannot be read: {error}.");
        BackendError::new(kind, text).caused_by(error)
    })?;
    let mut argument = OsString::from(format!("{name}="));
    argument.push(folder);
    Ok(argument)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn dataset(source: DatasetSource) -> Vec<Arc<Dataset>> {
        let name = "sales".parse().expect("a name");
        vec![Arc::new(Dataset { name, source, description: String::new() })]
    }

    #[test]
    fn a_dataset_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dataset(DatasetSource::Folder(dir.path().into()));
        let mut expected = OsString::from("sales=");
        expected.push(dir.path());
        assert_eq!(readable(&folder).expect("readable"), [expected]);
        fs::write(dir.path().join("file"), "x").expect("written");
        for (source, why) in [
            (DatasetSource::Folder(dir.path().join("missing")), "No such file"),
            (DatasetSource::Folder(dir.path().join("file")), "Not a directory"),
            (DatasetSource::Volume(json!({"emptyDir": {}})), "Kubernetes"),
        ] {
            let error = readable(&dataset(source)).expect_err("refused").to_string();
            assert!(error.contains("sales") && error.contains(why), "{error}");
        }
    }
}
