//! Reads the last line of a Python traceback. Pure; the program may have written anything.

use protocol::message::Facts;

use crate::{missing::quoted, tree::Snapshot};

/// Adds the facts that the end of a failed program's standard error reveals. `files` are those of the data area.
pub fn explain(stderr: &[u8], files: &Snapshot, facts: &mut Facts) {
    let stderr = String::from_utf8_lossy(stderr);
    let module = wanting_module(&stderr).map(|name| name.replace('.', "/"));
    let hiding = module.map(|path| [format!("{path}.py"), format!("{path}/__init__.py")]);
    facts.hidden_module = hiding.into_iter().flatten().find(|path| files.contains_key(path));
}

/// The module in which the program did not find a name, if the last line says so. A library's module of the same name
/// may have that name.
fn wanting_module(stderr: &str) -> Option<String> {
    let last = stderr.trim_end().rsplit('\n').next()?;
    let (kind, text) = last.split_once(": ")?;
    let rest = match kind {
        "AttributeError" if text.contains(" has no attribute ") => {
            text.strip_prefix("partially initialized ").unwrap_or(text).strip_prefix("module ")?
        }
        "ImportError" => {
            text.split_once(" from ")?.1.trim_start_matches("partially initialized module ")
        }
        _ => return None,
    };
    let name = rest.starts_with('\'').then(|| quoted(rest))??;
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    (!name.is_empty() && name.chars().all(is_plain)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_that_lacks_something_is_read_from_the_last_line() {
        let wanting = |last: &str| wanting_module(&format!("Traceback:\n  File \"x\"\n{last}\n"));
        for last in [
            "AttributeError: module 'random' has no attribute 'randint'",
            "AttributeError: partially initialized module 'random' from '/mnt/data/random.py' has no attribute 'x' (most likely due to a circular import)",
            "ImportError: cannot import name 'Random' from 'random' (/mnt/data/random.py)",
            "ImportError: cannot import name 'x' from partially initialized module 'random' (most likely due to a circular import)",
        ] {
            assert_eq!(wanting(last).as_deref(), Some("random"), "{last}");
        }
        for other in [
            "AttributeError: 'str' object has no attribute 'x'",
            "AttributeError: module '../x' has no attribute 'y'",
            "ImportError: Unable to find a usable engine",
            "ValueError: module 'random' has no attribute 'x'",
            "ImportError: cannot import name 'x' from ''",
            "",
        ] {
            assert_eq!(wanting(other), None, "{other}");
        }
    }
}
