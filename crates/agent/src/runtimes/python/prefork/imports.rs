//! The modules that a program imports, read from its text. Estimates: an error only costs time.

use std::collections::BTreeSet;

/// The first names of the modules that a program seems to import and that are preloaded. An estimate: a module that it
/// misses only costs time.
pub(super) fn wanted<'a>(code: &[u8], preload: &'a [String]) -> BTreeSet<&'a str> {
    let code = String::from_utf8_lossy(code);
    let imported = imported(&code);
    // Only the fork server can make a program of code for a notebook. The first module is loaded soonest.
    let soonest = is_for_notebook(&code).then(|| first_names(preload).next()).flatten();
    first_names(preload).filter(|name| imported.contains(*name)).chain(soonest).collect()
}

/// The first names of modules.
fn first_names(modules: &[String]) -> impl Iterator<Item = &str> {
    modules.iter().filter_map(|name| name.split('.').next())
}

/// The first names of the modules that a program seems to import.
fn imported(code: &str) -> BTreeSet<String> {
    let first =
        |name: &str| name.trim_start().split(['.', ' ', '\r']).next().unwrap_or("").to_owned();
    code.split(['\n', ';'])
        .map(str::trim_start)
        .flat_map(|line| match (line.strip_prefix("import "), line.strip_prefix("from ")) {
            (Some(names), _) => names.split(',').map(first).collect(),
            (_, Some(name)) => vec![first(name)],
            _ => vec![],
        })
        .collect()
}

/// Whether a program seems to have syntax that only notebooks understand.
fn is_for_notebook(code: &str) -> bool {
    code.contains("display(")
        || code.lines().any(|line| line.starts_with(['%', '!']) || line.starts_with("await "))
}

/// Whether these modules are all that a program seems to need.
pub(super) fn suffice(code: &[u8], loaded: &[String]) -> bool {
    let code = String::from_utf8_lossy(code);
    let has = |name: &String| first_names(loaded).any(|loaded| loaded == name);
    !is_for_notebook(&code) && imported(&code).iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_imports_is_read_from_its_text() {
        let preload = ["numpy", "pandas", "matplotlib.pyplot", "json"].map(str::to_owned);
        let wants = |code: &str| wanted(code.as_bytes(), &preload).into_iter().collect::<Vec<_>>();
        assert_eq!(wants("print(2 + 2)"), Vec::<&str>::new());
        assert_eq!(wants("import os, pandas as pd\nimport  json"), ["json", "pandas"]);
        assert_eq!(wants("if True:\n    from matplotlib import pyplot"), ["matplotlib"]);
        assert_eq!(wants("x = 1; import numpy.linalg\r\n"), ["numpy"]);
        assert_eq!(wants("%matplotlib inline\nprint(1)"), ["numpy"]);
        assert_eq!(wants("x = await_this()"), Vec::<&str>::new());
        assert_eq!(wants("import pandasql\nfrom jsonl import x"), Vec::<&str>::new());
    }
}
